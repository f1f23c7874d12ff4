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


_ARRAY_HEADER: Final = Struct("!iiIii")  # dimensions, whether there are NULLs, an element's oid, length, first index
_LENGTH: Final = Struct("!i")
_NULL: Final = _LENGTH.pack(-1)


def _uuid(value: UUID | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.bytes


def _array_of(element: Wire) -> Callable[[Sequence[Any]], bytes]:
    def encode(values: Sequence[Any]) -> bytes:
        if not values:
            return _ARRAY_HEADER.pack(0, 0, element.oid, 0, 0)[:12]
        parts = [_ARRAY_HEADER.pack(1, None in values, element.oid, len(values), 1)]
        for value in values:
            if value is None:
                parts.append(_NULL)
            else:
                data = element.encode(value)
                parts += (_LENGTH.pack(len(data)), data)
        return b"".join(parts)

    return encode


_SCALARS: Final = {
    "bigint": Wire(20, Struct("!q").pack),
    "boolean": Wire(16, Struct("!?").pack),
    "bytea": Wire(17, bytes),
    "double precision": Wire(701, Struct("!d").pack),
    "integer": Wire(23, Struct("!i").pack),
    "smallint": Wire(21, Struct("!h").pack),
    "text": Wire(25, str.encode),
    "uuid": Wire(2950, _uuid),
}
_ARRAY_OIDS: Final = {
    "bigint": 1016,
    "boolean": 1000,
    "bytea": 1001,
    "double precision": 1022,
    "smallint": 1005,
    "text": 1009,
}

WIRE: Final = {
    **_SCALARS,
    **{f"{name}[]": Wire(oid, _array_of(_SCALARS[name])) for name, oid in _ARRAY_OIDS.items()},
}
"""The types that parameters have, by their names in SQL."""
