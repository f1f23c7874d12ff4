"""How parameters travel: the server reads each as the value that it was."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.pq import Format

from nl2state_postgres.wire import WIRE
from tests.servers import connect

_UUID = uuid.uuid4()
_VALUES: dict[str, list[Any]] = {
    "bigint": [0, 1, -1, 2**63 - 1, -(2**63)],
    "boolean": [True, False],
    "bytea": [b"", b"\x00\xff", bytes(100_000)],
    "double precision": [0.0, -0.1, 1e308, 5e-324],
    "integer": [0, 2**31 - 1, -(2**31)],
    "smallint": [0, 2**15 - 1, -(2**15)],
    "text": ["", "a", "\N{SNOWMAN}\U0001f600", "'\"\\{},", "NULL", "x" * 100_000],
    "uuid": [_UUID],
}
_ARRAYS = [name for name in WIRE if name.endswith("[]")]


@pytest.fixture
def connection(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with connect(dsn) as opened:
        yield opened


def _read(connection: psycopg.Connection[Any], kind: str, value: object) -> Any:
    """Send a parameter as it travels, and return what the server makes of it."""
    wire = WIRE[kind]
    sent = None if value is None else wire.encode(value)
    result = connection.pgconn.exec_params(f"SELECT $1::{kind}".encode(), [sent], [wire.oid], [Format.BINARY])
    loaders = psycopg.adapt.Transformer(connection)
    loaders.set_pgresult(result)
    ((read,),) = loaders.load_rows(0, 1, tuple)
    return read


@pytest.mark.parametrize(("kind", "value"), [(kind, value) for kind, values in _VALUES.items() for value in values])
def test_a_value_arrives_as_it_was(connection: psycopg.Connection[Any], kind: str, value: object) -> None:
    assert _read(connection, kind, value) == value


@pytest.mark.parametrize("kind", WIRE)
def test_no_value_arrives_as_null(connection: psycopg.Connection[Any], kind: str) -> None:
    assert _read(connection, kind, None) is None


@pytest.mark.parametrize("kind", _ARRAYS)
def test_a_list_arrives_in_its_order_with_what_is_missing_in_its_place(
    connection: psycopg.Connection[Any], kind: str
) -> None:
    values = _VALUES[kind.removesuffix("[]")]
    assert _read(connection, kind, []) == []
    assert _read(connection, kind, values) == values
    assert _read(connection, kind, [None, *values, None]) == [None, *values, None]
    assert _read(connection, kind, tuple(values)) == values


def test_each_type_is_tried() -> None:
    assert {name.removesuffix("[]") for name in WIRE} == set(_VALUES)


def test_sixteen_bytes_are_a_uuid_too(connection: psycopg.Connection[Any]) -> None:
    assert _read(connection, "uuid", _UUID.bytes) == _UUID
