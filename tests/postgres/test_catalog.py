"""The catalog refuses a malformed statement; and ours are what they declare."""

from __future__ import annotations

import re

import pytest
from psycopg.pq import ExecStatus

from nl2state import InvalidInputError, SchemaError
from nl2state_postgres.catalog import Catalog, Returns, quote_schema
from tests.servers import PostgresHarness, connect

_GOOD = """-- name: get_it
-- Gets it. Returns: one row.
SELECT 1 FROM {schema}.states WHERE scope = :scope AND key = :key OR scope = :scope"""


def _catalog(text: str) -> Catalog:
    return Catalog({"file.sql": text}, schema="s", clock="clock_timestamp()")


def test_a_statement_is_compiled() -> None:
    statement = _catalog("-- Of the file.\n\n" + _GOOD + ";\n")["get_it"]
    assert statement.sql == 'SELECT 1 FROM "s".states WHERE scope = $1::uuid AND key = $2::text OR scope = $1::uuid'
    assert statement.parameters == ("scope", "key")
    assert statement.returns is Returns.ONE
    assert not statement.writes


def test_casts_and_quotes_are_no_parameters() -> None:
    text = "-- name: a\n-- X. Returns: one row.\nSELECT '0 00'::interval, ' x'' ', \"c d\", :scope::text"
    assert _catalog(text)["a"].sql == "SELECT '0 00'::interval, ' x'' ', \"c d\", $1::uuid::text"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (_GOOD.replace("get_it", ""), "name is missing"),
        (_GOOD.replace("get_it", "Get it"), "name is missing or malformed"),
        ("SELECT 1;\n" + _GOOD, "has no name"),
        (_GOOD + ";\n" + _GOOD, "defined twice"),
        (_GOOD.replace("{schema}", "{table}"), "unknown slot"),
        (_GOOD.replace("{schema}", "{}"), "unknown slot"),
        (_GOOD.replace(":key", ":colour"), "unknown parameter colour"),
        (_GOOD.replace(":key", "':key'"), "inside quotes"),
        (_GOOD.replace(":key", "interval ':ttl_seconds s'"), "inside quotes"),
        (_GOOD.replace("one row", "something"), "does not end in what it returns"),
        (_GOOD.replace("-- Gets it. Returns: one row.\n", ""), "does not end in what it returns"),
        (_GOOD + "; SELECT 2", "not one statement"),
        ("-- name: a\n-- X. Returns: one row.\n", "not one statement"),
    ],
)
def test_a_malformed_statement_is_refused(text: str, words: str) -> None:
    with pytest.raises(SchemaError, match=words):
        _catalog(text)


@pytest.mark.parametrize("name", ["", "pg_own", "x" * 64, "a\nb", "a{b", "a:b", "a$b"])
def test_a_schema_that_cannot_be_is_refused(name: str) -> None:
    with pytest.raises(InvalidInputError):
        quote_schema(name)


def test_a_guarded_write_is_its_plain_form_and_the_lease_s_lock() -> None:
    catalog = Catalog.load(schema="s", clock="clock_timestamp()")
    held = (
        'held AS MATERIALIZED (SELECT scope FROM "s".leases WHERE scope = :scope AND resource = :fence_resource'
        " AND owner = :fence_owner AND token = :fence_token AND expires_at > (SELECT clock_timestamp())"
        " FOR KEY SHARE)"
    )
    without = {f"WITH {held}, ": "WITH ", f"WITH {held} ": "", "FROM held, ": "FROM ", " FROM held WHERE": " WHERE"}
    guarded = [statement for statement in catalog if statement.name.endswith("_fenced")]
    assert {statement.name for statement in guarded} == {
        "create_state_fenced",
        "create_states_fenced",
        "update_state_fenced",
        "update_value_fenced",
        "update_states_fenced",
        "put_state_fenced",
        "delete_state_fenced",
        "abandon_key_fenced",
        "complete_key_fenced",
        "complete_keys_fenced",
        "forget_key_fenced",
    }
    for statement in guarded:
        text = _with_names(statement.sql, statement.parameters)
        assert text.count(held) == text.count("FROM held") == 1
        for piece, kept in without.items():
            text = text.replace(piece, kept)
        plain = catalog[statement.name.removesuffix("_fenced")]
        assert text == _with_names(plain.sql, plain.parameters)


@pytest.mark.parametrize("clock", ["clock_timestamp()", "(SELECT clock_timestamp())"])
def test_the_server_takes_every_statement_as_it_is_declared(harness: PostgresHarness, clock: str) -> None:
    with connect(harness.dsn) as connection:
        for statement in Catalog.load(schema=harness.schema, clock=clock):
            described = connection.pgconn.prepare(b"", statement.sql.encode())
            assert described.status == ExecStatus.COMMAND_OK, (statement.name, described.error_message)
            shape = connection.pgconn.describe_prepared(b"")
            returns_rows = statement.returns in (Returns.ONE, Returns.OPTIONAL, Returns.MANY)
            assert bool(shape.nfields) == returns_rows, statement.name


def _with_names(sql: str, parameters: tuple[str, ...]) -> str:
    named = re.sub(r"\$(\d+)::(double precision|\w+)(\[\])?", lambda match: f":{parameters[int(match[1]) - 1]}", sql)
    return " ".join(named.split())


def test_a_guarded_write_says_of_a_lost_answer_what_the_plain_one_says() -> None:
    catalog = Catalog.load(schema="s", clock="now()")
    fenced = [statement for statement in catalog if statement.name.endswith("_fenced")]
    assert len(fenced) >= 7
    for statement in fenced:
        plain = catalog[statement.name.removesuffix("_fenced")]
        assert (statement.read_back, statement.sent_again) == (plain.read_back, plain.sent_again), statement.name


def test_each_write_of_a_call_says_what_becomes_of_a_lost_answer() -> None:
    """Silent are the sweeps, the first half of a revocation, and what a session or a migration writes."""
    silent = {
        statement.name
        for statement in Catalog.load(schema="s", clock="now()")
        if statement.writes and statement.read_back is None and not statement.sent_again
    }
    sweeps = {f"sweep_{what}" for what in ("deleted_states", "ended_states", "expired_states", "keys", "leases")}
    assert silent == sweeps | {"expire_lease", "note_migration", "note_timeline"}
