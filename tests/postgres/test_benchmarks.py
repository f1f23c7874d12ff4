"""The benchmark program: what it runs, what it says, and that nothing is left. Its figures are not looked at."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest

from nl2state_postgres.embedded import EmbeddedPostgres
from tests.benchmarks.__main__ import main
from tests.benchmarks.by_hand import open_by_hand
from tests.benchmarks.delays import HARMS
from tests.benchmarks.ours import open_ours
from tests.benchmarks.rounds import compare, team_of
from tests.benchmarks.server import serving
from tests.benchmarks.sides import CALLS, VALUE

BOUND_SECONDS = 45.0

Run = Callable[..., tuple[int, str, str]]

STATES = "SELECT record_id, revision, status, is_terminal, deleted_at IS NULL, expires_at, payload FROM {}.states"
LEASES = "SELECT resource, owner, ttl_seconds, expires_at > now(), NULL FROM {}.leases"
KEYS = "SELECT key, record_id, completed_at IS NULL, claim_until > now(), outcome FROM {}.keys"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """Yield the DSN of a server on which nobody else makes schemas."""
    with EmbeddedPostgres(settings={"fsync": "off"}) as embedded:
        yield embedded.dsn


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command, and return its exit status, its stdout and its stderr."""

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exited:
            sys.exit(main(arguments))
        assert isinstance(exited.value.code, int)
        return exited.value.code, *capsys.readouterr()

    return call


def schemas(dsn: str) -> list[Any]:
    query = "SELECT nspname FROM pg_namespace WHERE nspname !~ '^(pg_|public$|information_schema$)'"
    with psycopg.connect(dsn) as connection:
        return [name for (name,) in connection.execute(query)]


def test_every_call_is_compared_and_nothing_is_left(run: Run, server: str) -> None:
    status, out, err = run("--rounds", "1", "--calls", "3", "--threads", "1", "--json", "--dsn", server)
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert [result["call"] for result in found["results"]] == list(CALLS)
    for result in found["results"]:
        assert result.keys() == {"call", "threads", "ours_us", "by_hand_us", "ratio", "ratio_quartiles"}
        assert result["threads"] == 1
        assert min(result["ours_us"], result["by_hand_us"], result["ratio"]) > 0
    assert {"cores", "python", "psycopg", "server_version", "fsync", "synchronous_commit"} <= found["facts"].keys()
    assert schemas(server) == []


def test_what_is_asked_for_is_compared_on_a_server_of_its_own(run: Run) -> None:
    status, out, err = run("--rounds", "2", "--calls", "6", "--threads", "1,3", "--only", "update,list", "--durable")
    assert (status, err) == (0, "")
    words = out.split()
    assert words.count("update") == words.count("list") == 2
    assert "1 thread\n" in out
    assert "3 threads\n" in out
    assert "get" not in words
    assert words[words.index("fsync") + 1] == "on"


def test_both_sides_do_the_same_work(server: str) -> None:
    with (
        serving(server, durable=False) as (dsn, made),
        open_ours(dsn, made["ours"], 1) as ours,
        open_by_hand(dsn, made["by_hand"], 1) as by_hand,
        team_of(1) as team,
        psycopg.connect(dsn) as connection,
    ):
        lanes = team.lanes(ours), team.lanes(by_hand)
        for call in CALLS:
            assert len(list(compare(team, lanes, call, rounds=1, calls=20))) == 1
        for query in (STATES, LEASES, KEYS):
            both = [sorted(map(read, connection.execute(query.format(schema)))) for schema in made.values()]
            assert both[0] == both[1]
            assert both[0]


def read(row: tuple[Any, ...]) -> str:
    """Return what a row says, its value decoded: the sides write JSON a little differently."""
    *columns, value = row
    return str((columns, None if value is None else json.loads(value) == VALUE))


def test_a_successor_gets_the_lease_and_the_late_write_is_refused(run: Run, server: str) -> None:
    """P6, P13."""
    status, out, err = run("--delays", "--rounds", "1", "--json", "--dsn", server)
    found = json.loads(out)
    assert err == ""
    assert [delay["harm"] for delay in found["delays"]] == [str(harm) for harm in HARMS]
    assert [delay["late_writes_refused"] for delay in found["delays"]] == [None, True, True, None]
    assert status == (0 if all(delay["within_bound"] for delay in found["delays"]) else 1)
    assert schemas(server) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--only", "get,nothing"], "nothing is not one of the calls"),
        (["--threads", "1,0"], "0 is not a number from 1 to"),
        (["--calls", "many"], "many is not a number from 1 to"),
        (["--durable", "--dsn", "host=/nowhere"], "--durable is for the temporary server"),
        (["--fast"], "unrecognized arguments: --fast"),
        (["--dsn", "host=/nowhere dbname=x password=hunter2"], "nowhere"),
    ],
)
def test_what_cannot_be_done_is_told_in_one_line(run: Run, arguments: list[str], words: str) -> None:
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert err.startswith("benchmarks: ")
    assert err.count("\n") == 1
    assert words in err
    assert "hunter2" not in err


@pytest.mark.parametrize(
    ("what", "begun"),
    [
        ("--threads 4 --calls 1000000 --only create", "states WHERE record_id LIKE 'x%'"),  # in the midst of a round
        ("--threads 4 --calls 1000000 --only release", "leases WHERE resource LIKE 'x%'"),  # in what is made before it
        ("--delays", "leases"),
    ],
)
def test_a_run_that_is_asked_to_end_leaves_nothing(server: str, what: str, begun: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.benchmarks", "--dsn", server, *what.split()],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            await_rows(server, begun, process)
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=BOUND_SECONDS)
        finally:
            process.kill()
    assert (process.returncode, out, err) == (143, "", "benchmarks: interrupted\n")
    assert schemas(server) == []


def await_rows(dsn: str, begun: str, process: subprocess.Popen[str]) -> None:
    """Return once one of the run's schemas has such rows."""
    deadline = time.monotonic() + BOUND_SECONDS
    with psycopg.connect(dsn, autocommit=True) as connection:
        while True:
            assert process.poll() is None
            assert time.monotonic() < deadline
            for schema in schemas(dsn):
                with suppress(psycopg.errors.UndefinedTable):
                    if connection.execute(f"SELECT FROM {schema}.{begun} LIMIT 1").rowcount:
                        return
            time.sleep(0.01)
