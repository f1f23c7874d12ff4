"""Values as they are stored: JSON or bytes, their canonical form, their fingerprint and their bounds."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias, cast

from nl2state.errors import CorruptError, InvalidInputError, PayloadError
from nl2state.limits import Limits

__all__ = [
    "Encoding",
    "Json",
    "Payload",
    "Value",
    "decode",
    "encode",
    "fingerprint",
    "fingerprint_bytes",
    "fingerprint_text",
]

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"
Value: TypeAlias = "Json | bytes"

FORMAT = 1
"""The version of the stored form. A sealed payload will have another one."""

_INTEGER_DIGITS_MAX = 4_000  # Python itself refuses to print or read longer ones
_INTEGER_MAX = 10**_INTEGER_DIGITS_MAX
_REQUEST_NODES_MAX = 67_108_864  # a request is not stored, so its size is the service's own affair
_FINGERPRINT_PREFIX = "sha256:"

_encode_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":")).encode


class Encoding(IntEnum):
    """How a payload's bytes are to be read."""

    JSON = 1
    BYTES = 2


@dataclass(frozen=True, slots=True)
class Payload:
    """A value as it is stored."""

    data: bytes
    encoding: Encoding
    format: int = FORMAT


def encode(value: Value, limits: Limits, *, field: str = "value", bytes_max: int | None = None) -> Payload:
    """Return the canonical form of a value: keys sorted, no spaces, UTF-8. Bytes stay as they are.

    Raises PayloadError, before any backend is asked, for what JSON has no word for (NaN, infinities, tuples, keys that
    are not strings), lone surrogates, what is deeper or larger than `limits` allow (or `bytes_max`, where it is given),
    and fields that bear the name of a credential.
    """
    if isinstance(value, bytes):
        payload = Payload(value, Encoding.BYTES)
    else:
        # each node takes a byte at least
        _walk(value, _Bounds(field, limits.payload_depth_max, limits.payload_bytes_max, limits.forbidden_names))
        payload = Payload(_canonical(value, field), Encoding.JSON)
    most = limits.payload_bytes_max if bytes_max is None else bytes_max
    if len(payload.data) > most:
        raise PayloadError(f"{field} is larger than {most} bytes", field=field, limit=most)
    return payload


def decode(payload: Payload) -> Value:
    """Return the value of a stored payload. Raises CorruptError for one that this code cannot have written."""
    if payload.format != FORMAT:
        raise CorruptError("a stored payload is of a form that this code does not know")
    if payload.encoding == Encoding.BYTES:
        return payload.data
    try:
        return cast("Value", json.loads(payload.data))
    except ValueError:
        pass
    raise CorruptError("a stored payload is not JSON")


def fingerprint(value: Value, limits: Limits | None = None, *, field: str = "request") -> str:
    """Return `sha256:` and 64 hexadecimal digits of a value's canonical form.

    The order of keys does not matter; the order of a list does. A request may hold credentials: it is not stored.
    Raises PayloadError.
    """
    limits = limits or Limits()
    if isinstance(value, bytes):
        digest = hashlib.sha256(b"bytes:" + value)
    else:
        _walk(value, _Bounds(field, limits.payload_depth_max, _REQUEST_NODES_MAX))
        digest = hashlib.sha256(b"json:" + _canonical(value, field))
    return fingerprint_text(digest.digest())


def fingerprint_bytes(text: str, *, field: str) -> bytes:
    """Return the 32 bytes of a fingerprint. Raises InvalidInputError where it is not one."""
    digits = text.removeprefix(_FINGERPRINT_PREFIX) if isinstance(text, str) else ""
    if digits == text or len(digits) != 64 or not set(digits) <= set("0123456789abcdef"):
        raise InvalidInputError(f"{field} must be 'sha256:' and 64 lower-case hexadecimal digits", field=field)
    return bytes.fromhex(digits)


def fingerprint_text(digest: bytes) -> str:
    """Return the fingerprint of 32 bytes: `sha256:` and 64 hexadecimal digits."""
    return _FINGERPRINT_PREFIX + digest.hex()


def _canonical(value: Value, field: str) -> bytes:
    try:
        return _encode_json(value).encode()
    except UnicodeEncodeError:
        pass
    raise PayloadError(f"{field} has a lone surrogate", field=field)


@dataclass(slots=True)
class _Bounds:
    """What a walk keeps in sight. A value that holds one list many times over has more nodes than memory has bytes."""

    field: str
    depth_max: int
    nodes_left: int
    forbidden: frozenset[str] = frozenset()


def _walk(value: object, bounds: _Bounds, depth: int = 1) -> None:
    """Refuse what the encoder would let through or change in silence: the types, the names, the depth, the size."""
    kind, field = type(value), bounds.field
    bounds.nodes_left -= 1
    if bounds.nodes_left < 0:
        raise PayloadError(f"{field} has too many parts", field=field)
    if kind is str or kind is bool or value is None:
        return
    if kind is dict or kind is list:
        if depth > bounds.depth_max:
            raise PayloadError(f"{field} is deeper than {bounds.depth_max} levels", field=field, limit=bounds.depth_max)
        members = cast("list[object]", value)
        if kind is dict:
            for name in members:
                _check_name(name, field, bounds.forbidden)
            members = list(cast("dict[str, object]", value).values())
        for member in members:
            _walk(member, bounds, depth + 1)
    elif kind is int or kind is float:
        _check_number(cast("float", value), field)
    else:
        raise PayloadError(f"{field} has something that is not JSON", field=field)


def _check_number(number: float, field: str) -> None:
    if not math.isfinite(number) if isinstance(number, float) else not -_INTEGER_MAX < number < _INTEGER_MAX:
        raise PayloadError(f"{field} has a number that is not finite, or too long", field=field)


def _check_name(name: object, field: str, forbidden: frozenset[str]) -> None:
    if type(name) is not str:
        raise PayloadError(f"{field} has an object with a key that is not a string", field=field)
    if forbidden and name.lower().replace("-", "").replace("_", "") in forbidden:
        raise PayloadError(f"{field} has a field with the name of a credential", field=field)
