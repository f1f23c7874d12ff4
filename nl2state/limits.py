"""Every bound, in one place. An input beyond one is refused before the backend is asked."""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from nl2state.errors import InvalidInputError

__all__ = ["CREDENTIAL_NAMES", "INTEGER_MAX", "Limits", "check_seconds", "checked_integer"]

INTEGER_MAX: Final = 2**63 - 1
"""The greatest integer that a backend keeps: of a revision, a token, an attempt, a schema version."""

CREDENTIAL_NAMES = frozenset(
    {
        "accesskey",
        "apikey",
        "authorization",
        "clientsecret",
        "credentials",
        "passphrase",
        "passwd",
        "password",
        "privatekey",
        "secret",
        "secretkey",
    }
)
"""Names that no field of a stored value has, unless `Limits.forbidden_names` says otherwise."""


class Limits(BaseModel):
    """The bounds of a store. The defaults suit a service; a wider one is a decision."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id_bytes_max: int = Field(default=255, ge=1, le=1_000)
    """UTF-8 bytes of a record id, resource, key, owner or status. An index entry must hold two of them."""

    payload_bytes_max: int = Field(default=1_048_576, ge=1, le=67_108_864)
    """Bytes of a value or an outcome, in its canonical form."""

    payload_depth_max: int = Field(default=64, ge=1, le=150)
    """Levels of lists and objects in a value. The fastest JSON readers stop near 200."""

    metadata_bytes_max: int = Field(default=4_096, ge=2, le=65_536)
    """Bytes of a lease's metadata, in its canonical form."""

    forbidden_names: frozenset[str] = CREDENTIAL_NAMES
    """Names that no field of a stored value may have, at any depth: lower case, without - and _."""

    lease_ttl_seconds_min: float = Field(default=0.1, gt=0)
    """The shortest life of anything: below it, a lease could be over before its holder hears of it."""

    ttl_seconds_max: float = Field(default=315_360_000.0, gt=0, le=3_153_600_000.0)
    """The longest life of anything: ten years."""

    wait_seconds_max: float = Field(default=3_600.0, ge=0)
    """The longest wait in one call."""

    page_size_max: int = Field(default=1_000, ge=100, le=10_000)
    """Rows that a call which lists looks at. It is not less than what such a call does unless told otherwise."""

    items_max: int = Field(default=1_000, ge=1, le=10_000)
    """Items of a call for many."""

    items_bytes_max: int = Field(default=16_777_216, ge=1, le=268_435_456)
    """Bytes of all values of a call for many, in their canonical form. A server takes a message of 1 GiB at most."""


def check_seconds(field: str, value: float, *, least: float = 0.0, most: float) -> float:
    """Return a duration in seconds within its bounds. Raises InvalidInputError; NaN and infinity are out of any."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidInputError(f"{field} must be a number of seconds", field=field)
    if not value >= least:
        raise InvalidInputError(f"{field} must be at least {least} seconds", field=field, limit=least)
    if value > most:
        raise InvalidInputError(f"{field} must be at most {most} seconds", field=field, limit=most)
    return float(value)


def checked_integer(field: str, value: int, *, least: int = 1, most: int = INTEGER_MAX) -> int:
    """Return an integer within its bounds. Raises InvalidInputError."""
    if type(value) is not int or not least <= value <= most:
        raise InvalidInputError(f"{field} must be an integer from {least} to {most}", field=field, limit=most)
    return value
