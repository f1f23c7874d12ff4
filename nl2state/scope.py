"""TenantScope: the only way to name a tenant."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from uuid import UUID

from nl2state.errors import InvalidInputError
from nl2state.payload import fingerprint_bytes

__all__ = ["TenantScope", "length_prefixed", "scope_uuid"]

_PEPPER_BYTES_MIN = 16


@dataclass(frozen=True, slots=True)
class TenantScope:
    """A tenant, as 16 bytes that lead every key of its rows. The tenant's own name is never stored or logged.

    Make one with `derive`, `from_fingerprint` or `local`; `uuid` is what a backend stores.
    """

    uuid: UUID

    def __post_init__(self) -> None:
        if not isinstance(self.uuid, UUID):
            raise InvalidInputError("a scope is made by derive, from_fingerprint or local", field="uuid")

    @classmethod
    def derive(cls, *parts: str, pepper: str | bytes) -> TenantScope:
        """Derive a scope from the parts of a tenant's name: HMAC-SHA-256 over the length-prefixed UTF-8 parts.

        `("a:b", "c")` and `("a", "b:c")` differ. The pepper, at least 16 bytes, is for ever: with another one, every
        tenant is another tenant and its rows are out of reach. Raises InvalidInputError.
        """
        if not isinstance(pepper, (str, bytes)):
            raise InvalidInputError("pepper must be a string or bytes", field="pepper")
        key = pepper.encode("utf-8", "surrogatepass") if isinstance(pepper, str) else pepper
        if len(key) < _PEPPER_BYTES_MIN:
            raise InvalidInputError(
                f"pepper is shorter than {_PEPPER_BYTES_MIN} bytes", field="pepper", limit=_PEPPER_BYTES_MIN
            )
        if not parts:
            raise InvalidInputError("a scope needs at least one part", field="parts")
        return cls._of(hmac.new(key, length_prefixed("parts", parts), hashlib.sha256).digest())

    @classmethod
    def from_fingerprint(cls, fingerprint: str) -> TenantScope:
        """Take a scope that was derived elsewhere: `sha256:` and 64 hexadecimal digits. Raises InvalidInputError."""
        return cls._of(fingerprint_bytes(fingerprint, field="fingerprint"))

    @classmethod
    def local(cls) -> TenantScope:
        """Return the one scope of a service that has a single tenant."""
        return cls._of(hashlib.sha256(b"nl2state: the local scope").digest())

    @classmethod
    def _of(cls, digest: bytes) -> TenantScope:
        return cls(UUID(bytes=digest[:16]))


def scope_uuid(scope: TenantScope) -> UUID:
    """Return what a backend stores of a scope. Raises InvalidInputError for what is none, a tenant's name for one."""
    if not isinstance(scope, TenantScope):
        raise InvalidInputError("scope is not a TenantScope: derive one of the tenant's name", field="scope")
    return scope.uuid


def length_prefixed(field: str, parts: tuple[str, ...]) -> bytes:
    """Join parts so that no two lists of parts give the same bytes. Refuses an empty part and a lone surrogate."""
    joined = bytearray()
    for part in parts:
        if not isinstance(part, str) or not part:
            raise InvalidInputError(f"{field} must be non-empty strings", field=field)
        try:
            data = part.encode()
        except UnicodeEncodeError:
            data = b""
        if not data:
            raise InvalidInputError(f"{field} must be valid Unicode", field=field)
        joined += len(data).to_bytes(8, "big") + data
    return bytes(joined)
