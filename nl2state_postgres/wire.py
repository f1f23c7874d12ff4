"""How a parameter travels, by the type that the catalog declares for its name: its oid, and its binary form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any, Final, NamedTuple
from uuid import UUID

__all__ = ["WIRE", "Wire"]


class Wire(NamedTuple):
    """A type's oid in PostgreSQL, and how a value of it is sent."""

    oid: int
    encode: Callable[[Any], bytes]


_TEXT_OID: Final = 25
_ARRAY_HEADER: Final = Struct(
    "!iiIii"
)  # dimensions, whether there are NULLs, the oid of an element, length, first index
_LENGTH: Final = Struct("!i")


def _uuid(value: UUID | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.bytes


def _texts(values: Sequence[str]) -> bytes:
    if not values:
        return _ARRAY_HEADER.pack(0, 0, _TEXT_OID, 0, 0)[:12]
    parts = [_ARRAY_HEADER.pack(1, 0, _TEXT_OID, len(values), 1)]
    for value in values:
        data = value.encode()
        parts += (_LENGTH.pack(len(data)), data)
    return b"".join(parts)


WIRE: Final = {
    "bigint": Wire(20, Struct("!q").pack),
    "boolean": Wire(16, Struct("!?").pack),
    "bytea": Wire(17, bytes),
    "double precision": Wire(701, Struct("!d").pack),
    "integer": Wire(23, Struct("!i").pack),
    "smallint": Wire(21, Struct("!h").pack),
    "text": Wire(_TEXT_OID, str.encode),
    "text[]": Wire(1009, _texts),
    "uuid": Wire(2950, _uuid),
}
"""The types that parameters have, by their names in SQL."""
