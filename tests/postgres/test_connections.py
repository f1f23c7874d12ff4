"""Our own connections and their pool: what a service does to psycopg, and when, changes nothing of what they read."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import uuid
from pathlib import Path
from typing import Any

import psycopg
import pytest

from nl2state import Limits, OutcomeUnknownError, TenantScope, UsageError
from nl2state.testing.harness import start, until
from nl2state_postgres import PostgresStore
from nl2state_postgres import store as module
from nl2state_postgres.connection import Connection
from nl2state_postgres.pools import OwnPool, taken
from tests.proxy import Proxy
from tests.servers import PostgresHarness

SCOPE = TenantScope.local()


def test_what_a_service_registered_for_all_of_psycopg_is_not_used_for_ours(harness: PostgresHarness) -> None:
    """It may do so before it imports this."""
    program = """
import sys
import psycopg
from psycopg.types.string import TextLoader

for name in ("timestamptz", "uuid", "int8", "bytea"):
    psycopg.adapters.register_loader(name, TextLoader)
    psycopg.adapters.register_loader(name, type("Binary", (TextLoader,), {"format": psycopg.pq.Format.BINARY}))

from nl2state import TenantScope
from nl2state_postgres import PostgresStore

with PostgresStore.open(sys.argv[1], schema=sys.argv[2]) as store:
    record = store.tenant(TenantScope.local()).states.create("s", {"n": 1})
    assert store.tenant(TenantScope.local()).states.require("s") == record
    print(record.revision, record.created_at.tzinfo, record.value)
"""
    arguments = [sys.executable, "-c", program, harness.dsn, harness.schema]
    ran = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)  # ours
    assert ran.stdout == "1 UTC {'n': 1}\n", ran.stderr


def test_what_is_not_prepared_is_read_by_the_types_that_it_has_now(harness: PostgresHarness) -> None:
    """A migration of a newer version changed them: where nothing is prepared, no error of the server says so."""
    names = ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout")
    dsn = psycopg.conninfo.make_conninfo(harness.dsn, options=" ".join(f"-c {name}=9s" for name in names))
    settings = harness.settings.model_copy(update={"transaction_pooler": True, "connections_max": 1})
    with PostgresStore.open(dsn, schema=harness.schema, settings=settings) as store:
        tenant = store.tenant(SCOPE)
        tenant.states.create("s", 1, schema_version=7)
        assert tenant.states.require("s").schema_version == 7
        harness.observer.execute(f"ALTER TABLE {harness.schema}.states ALTER COLUMN schema_version TYPE integer")
        assert tenant.states.require("s").schema_version == 7


def test_a_signal_while_a_connection_is_looked_at_costs_the_pool_none(
    harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P11: one that is never given back would be missing for ever."""

    def interrupted(_: Any) -> bool:
        raise KeyboardInterrupt

    settings = harness.settings.model_copy(update={"connections_max": 1, "checkout_timeout_seconds": 2.0})
    with PostgresStore.open(harness.dsn, schema=harness.schema, settings=settings) as store:
        with monkeypatch.context() as patched:
            patched.setattr(Connection, "alive", property(interrupted))
            with pytest.raises(KeyboardInterrupt):
                store.tenant(SCOPE).states.get("s")
        assert store.tenant(SCOPE).states.get("s") is None


def test_a_store_that_cannot_be_opened_leaves_no_pool_open(
    harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P11: its threads and connections would stay."""
    made: list[OwnPool] = []

    def second_fails(*arguments: Any, **options: Any) -> OwnPool:
        if made:
            raise RuntimeError("no more threads")
        made.append(OwnPool(*arguments, **options))
        return made[0]

    monkeypatch.setattr(module, "OwnPool", second_fails)
    with pytest.raises(RuntimeError):
        PostgresStore.open(harness.dsn, schema=harness.schema)
    with pytest.raises(UsageError, match="closed"):
        made[0].take()


def test_a_write_that_a_read_only_server_refused_is_sent_again_on_another_connection(harness: PostgresHarness) -> None:
    """Case 36: the server says that it kept nothing, so that not even a creation is in doubt."""
    settings = harness.settings.model_copy(update={"connections_max": 1})
    with PostgresStore.open(harness.dsn, schema=harness.schema, settings=settings) as store:
        with taken(store._database._pool) as connection:
            connection.command("SET default_transaction_read_only = on")
        assert store.tenant(SCOPE).states.create("s", 1).revision == 1


def test_a_signal_while_an_answer_is_waited_for_cancels_the_statement_and_hangs_up(harness: PostgresHarness) -> None:
    """Nobody knows whether it ran, and the next one to use the connection would get its answer."""
    client = harness.clients[0]
    assert isinstance(client, PostgresStore)
    key = uuid.uuid4().int % 2**63
    harness.observer.execute("SELECT pg_advisory_lock(%s)", [key])

    def interrupt() -> None:
        until(lambda: harness.waiting() == 1, "it waits")
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    with taken(client._database._pool) as connection:
        interrupting = start(interrupt)
        with pytest.raises(KeyboardInterrupt):
            connection.run(client._database.catalog["lock_migrations"], {"lock_key": key})
        interrupting.result()
        assert connection.closed
    until(lambda: harness.waiting() == 0, "the server has given it up too")
    harness.observer.execute("SELECT pg_advisory_unlock(%s)", [key])


def test_no_encoding_of_the_dsn_is_heeded(harness: PostgresHarness) -> None:
    """Text would be stored wrongly, without an error."""
    dsn = psycopg.conninfo.make_conninfo(harness.dsn, client_encoding="LATIN1")
    with PostgresStore.open(dsn, schema=harness.schema, settings=harness.settings) as client:
        client.tenant(SCOPE).states.create("\N{LATIN SMALL LETTER A WITH DIAERESIS}", 1)
        assert client.tenant(SCOPE).states.list_ids().items == ("\N{LATIN SMALL LETTER A WITH DIAERESIS}",)
    row = harness.observer.execute(f"SELECT octet_length(record_id) FROM {harness.schema}.states").fetchone()
    assert row == (2,)


def test_an_answer_without_the_server_s_word_that_it_is_ready_is_a_lost_one(
    harness: PostgresHarness, tmp_path: Path
) -> None:
    """P9: a statement that commits by itself does so after its result was sent."""
    with (
        Proxy(tmp_path, harness.dsn) as proxy,
        PostgresStore.open(proxy.dsn, schema=harness.schema, settings=harness.settings) as client,
        taken(client._database._pool) as connection,
    ):
        proxy.cut_at(b"planted", unready=True)
        with pytest.raises(OutcomeUnknownError):
            connection.command("SELECT 'planted'", in_doubt=True)
        assert proxy.has_cut
        assert connection.lost


def test_a_value_that_is_larger_than_the_socket_s_buffer_is_written_to_its_end(harness: PostgresHarness) -> None:
    settings = harness.settings.model_copy(update={"statement_timeout_seconds": 10.0})
    limits = Limits(payload_bytes_max=20_000_000)
    with PostgresStore.open(harness.dsn, schema=harness.schema, settings=settings, limits=limits) as client:
        value = bytes(20_000_000)
        client.tenant(SCOPE).states.create("s", value)
        assert client.tenant(SCOPE).states.require("s").value == value
