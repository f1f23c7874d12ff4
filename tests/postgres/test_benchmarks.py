"""The benchmark program: what it runs, what it says, and that nothing is left. Its figures are not looked at."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from nl2state_postgres.embedded import EmbeddedPostgres
from tests.benchmarks import pgbench, retention
from tests.benchmarks.__main__ import main
from tests.benchmarks.by_hand import open_by_hand
from tests.benchmarks.codec import LIBRARY, STDLIB
from tests.benchmarks.comparison import Comparison
from tests.benchmarks.crowds import Crowd
from tests.benchmarks.delays import HARMS
from tests.benchmarks.facts import facts
from tests.benchmarks.fairness import CROWD, Waits
from tests.benchmarks.filling import DUE
from tests.benchmarks.growth import Churn, Growth, Scale
from tests.benchmarks.ours import open_ours
from tests.benchmarks.parts import BenchmarkError
from tests.benchmarks.retention import Removal, Retention
from tests.benchmarks.rounds import Result, TeamOnLanes, compare, team_of
from tests.benchmarks.server import serving
from tests.benchmarks.sides import BY_HAND, BY_HAND_CODEC, CALLS, OURS, PGBENCH, VALUE, Side
from tests.benchmarks.written import write

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
    """Run the command with these options, on this server, and return its exit status, its stdout and its stderr."""

    def call(options: str, dsn: str | None = None) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exited:
            sys.exit(main([*options.split(), *([] if dsn is None else ["--dsn", dsn])]))
        assert isinstance(exited.value.code, int)
        return exited.value.code, *capsys.readouterr()

    return call


def schemas(dsn: str) -> list[Any]:
    query = "SELECT nspname FROM pg_namespace WHERE nspname !~ '^(pg_|public$|information_schema$)'"
    with psycopg.connect(dsn) as connection:
        return [name for (name,) in connection.execute(query)]


def test_every_call_is_compared_and_nothing_is_left(run: Run, server: str) -> None:
    status, out, err = run("--comparison --rounds 1 --calls 3 --threads 1 --json", server)
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert [result["call"] for result in found["results"]] == list(CALLS)
    for result in found["results"]:
        assert result.keys() == {"call", "threads", "connections", "us", "ratios"}
        assert (result["threads"], result["connections"]) == (1, 1)
        beside = [PGBENCH] if result["call"] == pgbench.CALL else []  # the server's wheel has one
        assert list(result["us"]) == [OURS, BY_HAND, BY_HAND_CODEC, *beside]
        assert list(result["ratios"]) == [BY_HAND, BY_HAND_CODEC, *beside]
        assert min(result["us"].values()) > 0
    assert {"cores", "python", "psycopg", "server_version", "fsync", "synchronous_commit"} <= found["facts"].keys()
    assert schemas(server) == []


@pytest.mark.parametrize(("durable", "shown"), [(False, "off"), (True, "on")])
def test_the_facts_are_what_is_in_force_in_the_sessions_of_each_side(server: str, durable: bool, shown: str) -> None:
    with serving(server, durable=durable) as (dsn, made):
        known = facts(dsn, made, durable=durable)
        assert (known["synchronous_commit"], known["plan_cache_mode"]) == (shown, "force_generic_plan")
        assert records(dsn, made[OURS]) == []


def records(dsn: str, schema: str) -> list[Any]:
    with psycopg.connect(dsn) as connection:
        return connection.execute(f"SELECT record_id FROM {schema}.states").fetchall()


def test_what_is_usual_is_measured_unasked(run: Run) -> None:
    status, out, err = run("--rounds 1 --calls 8 --only get --seconds 1 --json")
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert {(result["threads"], result["connections"]) for result in found["results"]} == {(1, 1), (8, 8), (8, 4)}
    assert len(found["fairness"]["by_thread"]) == CROWD.threads
    assert sum(thread["calls"] for thread in found["fairness"]["by_thread"]) > 0
    assert {"nl2state", "nl2state_postgres"} <= found["imports"].keys()
    assert found["memory"].keys() == {"connections", "measure", OURS, BY_HAND}
    assert "delays" not in found


def test_without_pgbench_the_report_says_so(run: Run, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pgbench, "find", lambda _: None)
    status, out, err = run("--comparison --rounds 1 --calls 2 --threads 1 --only get", server)
    assert (status, err) == (0, "")
    assert "not found" in out
    assert "ours / pgbench" not in out


def test_a_codec_is_chosen_and_threads_share_connections(run: Run, server: str) -> None:
    options = "--comparison --rounds 1 --calls 8 --threads 1,4 --connections 2 --codec same --only renew --json"
    _, out, _ = run(options, server)
    results = json.loads(out)["results"]
    assert [(result["threads"], result["connections"]) for result in results] == [(1, 1), (4, 2)]
    assert all(list(result["us"]) == [OURS, BY_HAND_CODEC] for result in results)


def test_what_is_asked_for_is_compared_on_a_server_of_its_own(run: Run) -> None:
    status, out, err = run("--comparison --rounds 2 --calls 6 --threads 1,3 --only update,list --durable")
    assert (status, err) == (0, "")
    words = out.split()
    assert words.count("update") == words.count("list") == 2
    assert "1 thread on 1 connection\n" in out
    assert "3 threads on 3 connections\n" in out
    assert "get" not in words
    assert words[words.index("fsync") + 1] == words[words.index("synchronous_commit") + 1] == "on"


def test_both_sides_do_the_same_work(server: str) -> None:
    with (
        serving(server, durable=False) as (dsn, made),
        open_ours(dsn, made["ours"], 1) as ours,
        open_by_hand(dsn, made["by_hand"], 1, codec=STDLIB) as by_hand,
        open_by_hand(dsn, made["by_hand_codec"], 1, codec=LIBRARY) as by_hand_codec,
        team_of(1) as team,
        psycopg.connect(dsn) as connection,
    ):
        sides: dict[str, Sequence[Side]] = {OURS: ours, BY_HAND: by_hand, BY_HAND_CODEC: by_hand_codec}
        contenders = [TeamOnLanes(name, team, team.lanes(side)) for name, side in sides.items()]
        for call in CALLS:
            assert len(list(compare(contenders, call, Crowd(1, 1), rounds=1, calls=20))) == 1
        for query in (STATES, LEASES, KEYS):
            of_all = [sorted(map(read, connection.execute(query.format(made[side.name])))) for side in contenders]
            assert of_all[0] == of_all[1] == of_all[2]
            assert of_all[0]


def test_a_run_is_written_as_a_page_and_a_picture(tmp_path: Path) -> None:
    us = {OURS: (10.0, 20.0), BY_HAND: (10.0, 30.0), BY_HAND_CODEC: (20.0, 20.0), PGBENCH: (5.0, 5.0)}
    without = {name: us[name] for name in (OURS, BY_HAND, BY_HAND_CODEC)}
    results = [Result("get", Crowd(1, 1), us), Result("update", Crowd(8, 4), without)]
    write({"comparison": Comparison(results)}, {"processor": "made | up"}, tmp_path / "benchmarks", durable=False)
    page = (tmp_path / "benchmarks" / "comparison.md").read_text()
    assert '`make bench ARGS="--comparison --write"`' in page
    assert "![comparison](comparison.png)" in page
    assert "| get | 15.0 | 20.0 | 1.25 | 1.12-1.38 | 20.0 | 1.50 | 1.25-1.75 |" in page
    assert "## 8 threads on 4 connections" in page
    assert "| processor | made / up |" in page
    assert (tmp_path / "benchmarks" / "comparison.png").read_bytes().startswith(b"\x89PNG")


def test_growth_and_retention_are_written_with_the_bounds_that_did_not_hold(tmp_path: Path) -> None:
    churned = [
        Churn("updates", 100, 100, (1_000, 1_050), (1_000, 1_000)),
        Churn("renewals", 100, 98, (1_000, 1_000), (1_000, 1_000)),
        Churn("completions", 100, 100, (1_000, 9_000), (1_000, 9_000), grows=True),
    ]
    scales = [Scale("get", (100.0, 100.0), (110.0, 130.0)), Scale("update", (100.0,), (126.0,))]
    calm = Removal("keys", 3_000, 3_000, [10.0], [30.0], [12.5], [(100.0, 190.0), (100.0, 300.0), (100.0, 200.0)])
    reports = {"growth": Growth(churned, scales, 100, 1_000), "retention": Retention([calm])}
    write(reports, {}, tmp_path, durable=False)
    of_growth, of_retention = ((tmp_path / f"{name}.md").read_text() for name in reports)
    assert "| updates | 100 | 1.0000 | 1.050 | 1.000 | held |" in of_growth
    assert "| renewals | 100 | 0.9800 | 1.000 | 1.000 | NOT HELD |" in of_growth
    assert "| completions | 100 | 1.0000 |  |  | held |" in of_growth
    assert "| get | 100.0 | 120.0 | 1.20 | 1.15-1.25 | held |" in of_growth
    assert "| update | 100.0 | 126.0 | 1.26 | 1.26-1.26 | NOT HELD |" in of_growth
    assert "| keys | 3 | 12.5 | 30.0 | 30.0 | 0 | 1.25 | held |" in of_retention
    assert "| keys | 100 | 200 | 2.00 | 1.95-2.50 | held |" in of_retention
    assert [report.exit_status for report in reports.values()] == [1, 0]
    slow = Removal("keys", 3_000, 3_000, [61.0])
    assert Retention([calm, slow]).exit_status == 1


def test_the_waits_of_a_thread_are_summed_up() -> None:
    waits = Waits.of([*range(1_000_000, 100_000_000, 1_000_000), 500_000_000])
    assert waits == Waits(calls=100, median_ms=50.5, p99_ms=99.0, max_ms=500.0)
    assert Waits.of([]) == Waits(calls=0, median_ms=0.0, p99_ms=0.0, max_ms=0.0)


def read(row: tuple[Any, ...]) -> str:
    """Return what a row says, its value decoded: the sides write JSON a little differently."""
    *columns, value = row
    return str((columns, None if value is None else json.loads(value) == VALUE))


def test_a_successor_gets_the_lease_and_the_late_write_is_refused(run: Run, server: str) -> None:
    """P6, P13."""
    status, out, err = run("--delays --rounds 1 --json", server)
    found = json.loads(out)
    assert err == ""
    assert [delay["harm"] for delay in found["delays"]] == [str(harm) for harm in HARMS]
    assert [delay["late_writes_refused"] for delay in found["delays"]] == [None, True, True, None]
    assert status == (0 if all(delay["within_bound"] for delay in found["delays"]) else 1)
    assert schemas(server) == []


def test_growth_is_measured_and_nothing_is_left(run: Run, server: str) -> None:
    status, out, err = run("--growth --rows 600 --writes 400 --rounds 1 --calls 10 --json", server)
    found = json.loads(out)["growth"]
    assert err == ""
    assert [churn["what"] for churn in found["churn"]] == ["updates", "renewals", "renewals of one", "completions"]
    assert [churn["writes"] for churn in found["churn"]] == [400, 400, 200, 600]
    assert [scale["call"] for scale in found["scale"]] == ["get", "update", "acquire"]
    assert status == (0 if all(each["held"] for each in (*found["churn"], *found["scale"])) else 1)
    assert schemas(server) == []


def test_retention_is_measured_and_nothing_is_left(run: Run, server: str) -> None:
    status, out, err = run("--retention --rows 2500 --rounds 1 --json", server)
    found = json.loads(out)["retention"]
    assert err == ""
    assert [removal["kind"] for removal in found] == list(DUE)
    assert {removal["removed"] for removal in found} == {2_500}
    assert status == (0 if all(removal["held"] for removal in found) else 1)
    assert schemas(server) == []


def test_a_writer_that_fails_ends_the_run(server: str, capfd: pytest.CaptureFixture[str]) -> None:
    with serving(server, durable=False) as (dsn, made), psycopg.connect(dsn, autocommit=True) as connection:

        def progress(what: str, _done: int, _of: int) -> None:
            if what == "vacuuming":
                connection.execute(f"TRUNCATE {made[OURS]}.states")

        with pytest.raises(BenchmarkError, match="the writer's process failed"):
            retention.measure(dsn, made[OURS], 10, 1, progress)
    assert "NotFoundError" in capfd.readouterr().err
    assert schemas(server) == []


@pytest.mark.parametrize(
    ("options", "dsn", "words"),
    [
        ("--only get,nothing", None, "nothing is not one of the calls"),
        ("--threads 1,0", None, "0 is not a number from 1 to"),
        ("--calls many", None, "many is not a number from 1 to"),
        ("--codec fast", None, "invalid choice: 'fast'"),
        ("--rows 0", None, "0 is not a number from 1 to"),
        ("--growth --rows 3", None, "--growth needs 4 rows at least"),
        ("--fast", None, "unrecognized arguments: --fast"),
        ("", "host=/nowhere dbname=x password=hunter2", "nowhere"),
    ],
)
def test_what_cannot_be_done_is_told_in_one_line(run: Run, options: str, dsn: str | None, words: str) -> None:
    status, out, err = run(options, dsn)
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
        ("--fairness --seconds 600", "leases WHERE resource LIKE 'resource-fairness%'"),
        ("--batch --calls 1000000", "states WHERE record_id LIKE 'batch%'"),
        ("--delays", "leases"),
        ("--growth", "states WHERE revision > 3"),
        ("--retention --rows 2000000", "states WHERE record_id LIKE 'a%'"),
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
