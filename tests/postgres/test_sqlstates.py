"""P10: what becomes of each error that psycopg knows, on the way through a real call."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterator

import psycopg
import pytest

from nl2state import (
    CorruptError,
    OutcomeUnknownError,
    SchemaError,
    StoreError,
    StoreTimeoutError,
    StoreUnavailableError,
    TenantScope,
)
from nl2state_postgres import PostgresStore, sqlstates
from tests.postgres.everything import everything
from tests.servers import PostgresHarness

SECRET = "hunter2-planted"
STATES = {
    kind.sqlstate: kind
    for kind in vars(psycopg.errors).values()
    if isinstance(kind, type) and issubclass(kind, psycopg.Error) and kind.sqlstate
}
EXPECTED = {
    "0A000": StoreUnavailableError,
    "22P02": StoreError,
    "23505": StoreError,
    "25006": StoreUnavailableError,
    "25P03": StoreTimeoutError,
    "28P01": StoreUnavailableError,
    "40001": StoreUnavailableError,
    "40P01": StoreUnavailableError,
    "42501": SchemaError,
    "42P01": SchemaError,
    "42P07": SchemaError,
    "42601": StoreError,
    "53100": StoreUnavailableError,
    "53300": StoreUnavailableError,
    "55P03": StoreTimeoutError,
    "57014": StoreTimeoutError,
    "57P01": StoreUnavailableError,
    "57P03": StoreUnavailableError,
    "58030": StoreUnavailableError,
    "XX001": CorruptError,
}
"""Of a read, or in a transaction, where a lost connection leaves nothing in doubt."""


Call = Callable[[], object]
_RETRYABLE = (StoreUnavailableError, StoreTimeoutError)


@pytest.fixture
def failing(postgres: PostgresHarness) -> Iterator[tuple[Callable[[str], None], dict[str, Call]]]:
    """Yield what makes the server fail with an SQLSTATE, with secrets in all its words, and calls that then fail."""
    schema, scope = postgres.schema, TenantScope.local()
    postgres.clients[0].tenant(scope).states.create(SECRET, 1, ttl_seconds=60)  # so that the clock is read
    settings = postgres.settings.model_copy(update={"clock": f"{schema}.fail()", "connections_max": 1})

    def fail_with(state: str) -> None:
        told = ", ".join(f"{field} = ''{SECRET}''" for field in ("MESSAGE", "DETAIL", "HINT", "COLUMN", "TABLE"))
        postgres.observer.execute(
            f"CREATE OR REPLACE FUNCTION {schema}.fail() RETURNS timestamptz VOLATILE LANGUAGE plpgsql AS"
            f" 'BEGIN RAISE EXCEPTION USING ERRCODE = ''{state}'', {told}; END'"
        )

    fail_with("P0001")
    with PostgresStore.open(postgres.dsn, schema=schema, settings=settings) as store:
        tenant = store.tenant(scope)

        def in_transaction() -> None:
            with tenant.transaction() as tx:
                tx.states.create(SECRET, SECRET)

        def on_a_borrowed_connection() -> None:
            with psycopg.connect(postgres.dsn) as connection:
                tenant.on(connection).states.create(SECRET, SECRET)

        yield (
            fail_with,
            {
                "read": lambda: tenant.states.get(SECRET),
                "write": lambda: tenant.states.create(SECRET, SECRET),
                "transaction": in_transaction,
                "borrowed": on_a_borrowed_connection,
            },
        )


def test_every_sqlstate_that_psycopg_knows_is_mapped() -> None:
    assert len(STATES) > 200
    assert [f"{state} {kind.__name__}" for state, kind in STATES.items() if sqlstates.told(state) is None] == []


def test_an_error_of_the_server_is_told_by_its_sqlstate_and_without_its_words(
    failing: tuple[Callable[[str], None], dict[str, Call]], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    fail_with, calls = failing
    wrong: list[str] = []
    for state in sorted(STATES):
        fail_with(state)
        lost = state.startswith("08") or state in {"57P01", "57P02", "57P03", "57P04", "57P05"}
        expected = EXPECTED.get(state) or (sqlstates.told(state) or (StoreError,))[0]
        for name, call in calls.items():
            with pytest.raises(Exception) as caught:  # noqa: PT011  # the driver's would be one to find
                call()
            error = caught.value
            kind = OutcomeUnknownError if lost and name == "write" else expected
            if not isinstance(error, kind) or error.retryable is not issubclass(kind, _RETRYABLE):
                wrong.append(f"{state} {name}: {type(error).__name__}")
            if SECRET in everything(error) or error.__cause__ or error.__context__:
                wrong.append(f"{state} {name}: it has the driver's words")
    assert wrong == []
    assert SECRET not in caplog.text


def test_a_lock_s_timeout_is_pickled_as_what_its_caller_knows() -> None:
    again = pickle.loads(pickle.dumps(sqlstates.failure("55P03", in_doubt=False)))
    assert type(again) is StoreTimeoutError
    assert again.args == (sqlstates.told("55P03") or ("", ""))[1:]
