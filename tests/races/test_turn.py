"""P6, the interleaving that `turn` closes: a fenced write whose snapshot is older than a renewal, against a release.

S takes its snapshot. A renews; then, in one transaction, writes fenced and releases inside a savepoint (or: another
session writes fenced too and commits, and then A releases). B acquires. S writes with A's token: that must not commit.
Without `turn`, FOR KEY SHARE walks from the row version that S sees along the renewal to the release, which is recorded
as no key update, because another locker shared the row, and lets S pass. Random stress does not find it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib import resources
from typing import Any

import pytest

from nl2state.errors import StoreError
from nl2state.testing.harness import Call, start, until
from nl2state_postgres.catalog import Catalog, Statement
from tests.races.session import Session
from tests.servers import PostgresHarness

_PAUSE = 20_111  # the advisory lock that holds S's statement between its snapshot and its row lock
_RELEASES = ["in a savepoint after a fenced write", "after two sessions wrote fenced"]
_SNAPSHOTS = ["REPEATABLE READ", "SERIALIZABLE", "READ COMMITTED"]


def _catalog(harness: PostgresHarness, *, turn: bool) -> Catalog:
    """Return the library's statements, or the same ones without `turn`."""
    if turn:
        return Catalog.load(schema=harness.schema, clock="clock_timestamp()")
    harness.observer.execute(f"DROP INDEX {harness.schema}.leases_turn")
    folder = resources.files("nl2state_postgres") / "sql"
    texts = {entry.name: entry.read_text() for entry in folder.iterdir() if entry.name.endswith(".sql")}
    assert texts["leases.sql"].count(" turn = :write_id,") == 3
    texts["leases.sql"] = texts["leases.sql"].replace(" turn = :write_id,", "")
    return Catalog(texts, schema=harness.schema, clock="clock_timestamp()")


def _held_up(statement: Statement) -> Statement:
    """Return a fenced write that waits for the advisory lock after its snapshot and before its row lock."""
    head = "WITH held AS MATERIALIZED ("
    assert statement.sql.startswith(head)
    pause = f"WITH pause AS MATERIALIZED (SELECT pg_advisory_xact_lock_shared({_PAUSE})::text IS NOT NULL AS over), "
    sql = statement.sql.replace(head, pause + head.removeprefix("WITH "), 1)
    sql = sql.replace("WHERE scope =", "WHERE (SELECT over FROM pause) AND scope =", 1)
    return Statement("held_up", sql, statement.parameters, statement.returns, writes=True)


@contextmanager
def _sessions(harness: PostgresHarness, catalog: Catalog) -> Iterator[list[Session]]:
    sessions = [Session(harness, catalog) for _ in range(4)]
    yield sessions
    for session in sessions:
        session.close()


def _stale_write_committed(harness: PostgresHarness, snapshot: str, release: str, *, turn: bool) -> bool:
    """Force the interleaving; return whether S's write is in the table."""
    catalog = _catalog(harness, turn=turn)
    with _sessions(harness, catalog) as (a, b, s, other):
        for record_id in ("stale", "a's", "other's"):
            a.run("create_state", record_id=record_id)
        token = a.run("acquire_lease", ttl_seconds=60.0)[0]
        write = "update_state_fenced"

        def write_late(statement: str | Statement = write) -> Any:
            return s.run(statement, record_id="stale", fence_token=token)

        late: Call[Any] | None = None
        if snapshot == "READ COMMITTED":
            other.send(f"SELECT pg_advisory_lock({_PAUSE})")
            late = start(partial(write_late, _held_up(catalog[write])))
            until(lambda: harness.waiting() == 1, "S waits between its snapshot and its lock")
        else:
            s.send(f"BEGIN ISOLATION LEVEL {snapshot}")
            s.run("get_state", record_id="stale")

        assert a.run("renew_lease", token=token)
        a.send("BEGIN")
        assert a.run(write, record_id="a's", fence_token=token)
        if release == _RELEASES[0]:
            a.send("SAVEPOINT release")
        else:
            assert b.run(write, record_id="other's", fence_token=token)
        assert a.run("release_lease", token=token)
        a.send("COMMIT")
        assert b.run("acquire_lease", owner="B", ttl_seconds=60.0)[0] > token

        if late is not None:
            other.send(f"SELECT pg_advisory_unlock({_PAUSE})")
        try:
            (late or start(write_late)).result()
            s.send("COMMIT")
        except StoreError:
            s.send("ROLLBACK")  # it could not serialise: refused as well
        return bool(a.run("get_state", record_id="stale")[0] == 2)


@pytest.mark.parametrize("release", _RELEASES)
@pytest.mark.parametrize("snapshot", _SNAPSHOTS)
def test_a_write_whose_snapshot_is_older_than_a_renewal_is_refused_after_the_release(
    harness: PostgresHarness, snapshot: str, release: str
) -> None:
    assert not _stale_write_committed(harness, snapshot, release, turn=True)


@pytest.mark.parametrize("release", _RELEASES)
@pytest.mark.parametrize("snapshot", _SNAPSHOTS)
def test_without_turn_the_same_interleaving_commits_it(harness: PostgresHarness, snapshot: str, release: str) -> None:
    """The test above has teeth: this is what it would see."""
    assert _stale_write_committed(harness, snapshot, release, turn=False)
