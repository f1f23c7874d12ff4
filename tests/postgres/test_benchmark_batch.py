"""The benchmark of calls for many: that each way does the same work, and is told. Its figures are not looked at."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import psycopg
import pytest

from nl2state import AlreadyExistsError, FencingRejectedError, NotFoundError, RevisionConflictError
from nl2state_postgres import PostgresTenant
from nl2state_postgres.embedded import EmbeddedPostgres
from tests.benchmarks import batch
from tests.benchmarks.__main__ import main
from tests.benchmarks.batch import AT_ONCE, ATOMIC, CALLS_FOR_MANY, ITEMS, SINGLY, AtOnce, Batch, ManyLane, Singly
from tests.benchmarks.crowds import Crowd
from tests.benchmarks.ours import open_tenant
from tests.benchmarks.rounds import Result
from tests.benchmarks.server import serving
from tests.benchmarks.sides import OURS
from tests.benchmarks.written import write

STATES = "SELECT record_id, revision, payload, expires_at FROM {}.states"
LEASES = "SELECT resource, owner, expires_at > acquired_at + make_interval(secs => ttl_seconds) FROM {}.leases"
KEYS = "SELECT key, fingerprint, outcome, completed_at IS NULL FROM {}.keys"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """Yield the DSN of a server on which nobody else makes schemas."""
    with EmbeddedPostgres(settings={"fsync": "off"}) as embedded:
        yield embedded.dsn


def told(capsys: pytest.CaptureFixture[str], options: str, dsn: str) -> dict[str, Any]:
    status = main([*options.split(), "--json", "--dsn", dsn])
    out, err = capsys.readouterr()
    assert (status, err) == (0, "")
    found: dict[str, Any] = json.loads(out)
    return found


def test_each_call_is_measured_in_each_way_and_nothing_is_left(
    server: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Mock(wraps=open_tenant)
    monkeypatch.setattr(batch, "open_tenant", opened)
    found = told(capsys, "--batch --rounds 1 --calls 1", server)
    assert [result["call"] for result in found["batch"]] == [f"{call}_many" for call in CALLS_FOR_MANY]
    for result in found["batch"]:
        at_once = {AT_ONCE} if result["call"] == "get_many" else {AT_ONCE, ATOMIC}
        assert result["ratios"].keys() == at_once
        assert result["us"].keys() == {SINGLY, *at_once}
        assert min(result["us"].values()) > 0
    assert [call.kwargs for call in opened.call_args_list] == [{"durable": True}]
    assert found["facts"]["synchronous_commit"] == "on"
    with psycopg.connect(server) as connection:
        assert connection.execute("SELECT FROM pg_namespace WHERE nspname LIKE 'nl2state%'").rowcount == 0


def test_the_facts_tell_its_sessions_from_those_that_do_not_wait(
    server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = "--batch --comparison --threads 1 --rounds 1 --calls 1 --only get"
    found = told(capsys, asked, server)
    assert [len(found["batch"]), len(found["results"])] == [1, 1]
    assert "ours: off" in found["facts"]["synchronous_commit"]
    assert "batch: on" in found["facts"]["synchronous_commit"]
    assert told(capsys, f"{asked} --durable", server)["facts"]["synchronous_commit"] == "on"


def test_calls_that_have_none_for_many_are_told_in_one_line(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["--batch", "--only", "put,list", "--dsn", server])
    assert (status, *capsys.readouterr()) == (2, "", "benchmarks: none of these has a call for many: put, list\n")


def test_all_ways_do_the_same_work(server: str) -> None:
    with (
        serving(server, durable=False) as (dsn, made),
        open_tenant(dsn, made[OURS], 1) as tenant,
        psycopg.connect(dsn) as connection,
    ):
        sides = {str(number): side for number, side in enumerate(ways(tenant))}
        for name, side in sides.items():
            lane = ManyLane(side, name)
            for call in CALLS_FOR_MANY:
                getattr(side, call)(*lane.arguments(call))
        for query, count in ((STATES, 2 * ITEMS), (LEASES, ITEMS), (KEYS, 2 * ITEMS)):
            rows = connection.execute(query.format(made[OURS])).fetchall()
            of_each = [
                sorted(_without(name, row) for row in rows if row[0].startswith(f"batch-{name}")) for name in sides
            ]
            assert len(of_each[0]) == count
            assert of_each[0] == of_each[1] == of_each[2]


def _without(name: str, row: tuple[Any, ...]) -> str:
    return str((row[0].removeprefix(f"batch-{name}"), *row[1:]))


def ways(tenant: PostgresTenant) -> list[Singly]:
    return [Singly(tenant), AtOnce(tenant, atomic=False), AtOnce(tenant, atomic=True)]


@pytest.mark.parametrize("way", range(3))
def test_what_is_refused_is_not_measured(server: str, way: int) -> None:
    with serving(server, durable=False) as (dsn, made), open_tenant(dsn, made[OURS], 1) as tenant:
        side = ways(tenant)[way]
        lane = ManyLane(side, "0")
        (names,), (attempts,), (fences,) = map(lane.arguments, ("get", "complete", "renew"))
        side.complete(attempts)
        tenant.leases.release(fences[-1])
        with pytest.raises(AlreadyExistsError):
            side.create(names)
        with pytest.raises(RevisionConflictError):
            side.update(names, 2)
        with pytest.raises(FencingRejectedError):
            side.complete(attempts)
        with pytest.raises(FencingRejectedError):
            side.renew(fences)
        tenant.states.delete(names[-1], expected_revision=1)
        with pytest.raises((NotFoundError, LookupError)):
            side.get(names)
        with pytest.raises(NotFoundError):
            side.update(names, 1)
        assert tenant.states.get_revision(names[0]) == (1 if way == 2 else 2)  # all of them or none, where it is atomic


def test_a_run_is_written_as_a_page(tmp_path: Path) -> None:
    result = Result("update", Crowd(1, 1), {SINGLY: (40_000.0, 20_000.0), AT_ONCE: (4_000.0, 4_000.0)})
    write({"batch": Batch([result])}, {}, tmp_path, durable=True)
    page = (tmp_path / "batch.md").read_text()
    assert '`make bench ARGS="--batch --durable --write"`' in page
    assert "| update_many | 30.0 | 4.0 | 25,000 | 7.50 | 6.25-8.75 |" in page
