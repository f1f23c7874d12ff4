"""The benchmarks beside peers, with one that is none: what its process is told and tells, and that nothing is left."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from nl2state_postgres.embedded import EmbeddedPostgres
from tests.benchmarks.__main__ import main
from tests.benchmarks.crowds import Crowd
from tests.benchmarks.parts import BenchmarkError
from tests.benchmarks.peers import comparison, environment, peer
from tests.benchmarks.peers.comparison import PAIRS, PeerComparison
from tests.benchmarks.peers.database import database
from tests.benchmarks.peers.environment import pinned, ready
from tests.benchmarks.peers.peer import ROOT, Peer
from tests.benchmarks.rounds import Result
from tests.benchmarks.sides import OURS
from tests.benchmarks.written import write
from tests.postgres import fake_peer

SIDE = fake_peer.__name__
DSN = "host=/nowhere dbname=x password=hunter2"

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """Yield the DSN of a server on which nobody else makes databases."""
    with EmbeddedPostgres(settings={"fsync": "off"}) as embedded:
        yield embedded.dsn


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command beside peers that are none, and return its exit status, its stdout and its stderr."""
    monkeypatch.setattr(comparison, "ready", lambda _: Path(sys.executable))
    monkeypatch.setattr(comparison, "_SIDES", dict.fromkeys(pinned(), SIDE))

    def call(*arguments: str) -> tuple[int, str, str]:
        return main(["--peers", "--calls", "8", "--rounds", "2", *arguments]), *capsys.readouterr()

    return call


def opened(dsn: str = DSN, threads: int = 1) -> Peer:
    return Peer("fake", Path(sys.executable), SIDE, dsn, threads)


def made(dsn: str) -> list[str]:
    """Return what a run makes on a server."""
    with psycopg.connect(dsn) as connection:
        names = connection.execute(
            "SELECT datname FROM pg_database UNION ALL SELECT nspname FROM pg_namespace ORDER BY 1"
        )
        return [name for (name,) in names if name.startswith("nl2state")]


def test_each_pair_is_measured_and_nothing_is_left(run: Run, server: str) -> None:
    status, out, err = run("--threads", "2", "--json", "--dsn", server)
    assert (status, err) == (0, "")
    results = json.loads(out)["peers"]
    measured = [(result["peer"], result["call"], result["peer_call"], result["threads"]) for result in results]
    assert measured == [(pair.peer, pair.call, pair.peer_call, 2) for pair in PAIRS]
    for result in results:
        peer_name = result["peer"]
        assert result["version"] == pinned()[peer_name]
        assert result["connections"] == result["threads"]
        assert result["us"].keys() == {OURS, peer_name}
        low, high = result["ratios"][peer_name]["quartiles"]
        assert 0 < low <= result["ratios"][peer_name]["median"] <= high
        assert min(result["us"].values()) > 0
    assert made(server) == []


def test_the_calls_that_are_asked_for_are_shown(run: Run, server: str) -> None:
    status, out, err = run("--threads", "1", "--only", "update,reserve,transaction", "--dsn", server)
    assert (status, err) == (0, "")
    words = out.split()
    assert [words.count(call) for call in ("update", "reserve", "one_step", "get")] == [3, 1, 1, 0]
    assert "langgraph-checkpoint-postgres" in out


def test_as_many_connections_as_threads_are_opened_whatever_else_is_compared(run: Run, server: str) -> None:
    _, out, _ = run("--threads", "2,1,2", "--connections", "1", "--only", "put", "--json", "--dsn", server)
    results = json.loads(out)["peers"]
    assert [(result["threads"], result["connections"]) for result in results] == [(2, 2), (1, 1)]


def test_a_run_is_written_as_a_page(tmp_path: Path) -> None:
    pair = PAIRS[0]
    result = Result(pair.call, Crowd(1, 1), {OURS: (10.0, 20.0), pair.peer: (10.0, 30.0)})
    write({"peers": PeerComparison([(pair, result)])}, {}, tmp_path, durable=False)
    page = (tmp_path / "peers.md").read_text()
    assert f"## {pair.peer} {pinned()[pair.peer]}, 1 thread on 1 connection" in page
    assert "| get | get | 15.0 | 20.0 | 1.25 | 1.12-1.38 |" in page


@pytest.mark.parametrize(("durable", "shown"), [(False, "off"), (True, "on")])
def test_a_peer_has_a_database_with_our_settings(server: str, durable: bool, shown: str) -> None:
    with (
        database(server, "public", "nl2state_benchmark_settings", durable=durable) as dsn,
        psycopg.connect(dsn) as connection,
    ):
        for setting, value in (("synchronous_commit", shown), ("jit", "off"), ("enable_seqscan", "off")):
            assert connection.execute("SELECT current_setting(%s)", [setting]).fetchone() == (value,)
    assert made(server) == []


def test_a_round_is_made_by_all_threads_at_once() -> None:
    """And what a peer prints is no answer."""
    with opened(threads=3) as process:
        assert process.round("get", 5) > 0
        assert process.round("put", 1) > 0


def test_a_peer_that_fails_is_told_with_its_words_and_without_the_dsn() -> None:
    with pytest.raises(BenchmarkError) as raised, opened(threads=2) as process:
        process.round(fake_peer.FAILS, 1)
    assert str(raised.value) == "fake ended with status 1: RuntimeError: it cannot use ***"
    assert "Traceback" in raised.value.log
    assert "hunter2" not in raised.value.log


def test_a_peer_that_cannot_be_opened_ends_the_command(run: Run, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "Peer", lambda *_: opened(f"{server} password=hunter2 application_name=broken"))
    status, out, err = run("--threads", "1", "--dsn", server)
    assert (status, out) == (2, "")
    assert err.splitlines()[-1] == "benchmarks: fake ended with status 1: RuntimeError: cannot open ***"
    assert "Traceback" in err
    assert "hunter2" not in err
    assert made(server) == []


def test_a_peer_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer, "_ROUND_SECONDS", 0.2)
    with pytest.raises(BenchmarkError, match="fake did not answer in 0 seconds"), opened() as process:
        process.round(fake_peer.SLEEPS, 1)


ORPHAN = f"""
from pathlib import Path
import sys
from tests.benchmarks.peers.peer import Peer
with Peer("fake", Path(sys.executable), {SIDE!r}, sys.argv[1], 1) as process:
    process.round({fake_peer.SLEEPS!r}, 1)
"""


def test_a_peer_s_process_dies_with_its_parent_in_the_midst_of_a_round(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    command = [sys.executable, "-c", ORPHAN, f"application_name={pipe}"]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, cwd=ROOT, env=environ) as parent, pipe.open("rb") as opened_in_the_round:
        parent.send_signal(signal.SIGKILL)
        assert opened_in_the_round.read() == b""


def test_what_runs_in_the_peers_environment_needs_nothing_of_ours() -> None:
    code = "import sys, tests.benchmarks.peers.worker, tests.benchmarks.peers.lane; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    loaded = {name.partition(".")[0] for name in found.split()}
    assert loaded & {"nl2state", "nl2state_postgres", "psycopg", "pydantic", "rich", "structlog"} == set()


def test_the_environment_is_made_once_and_again_when_what_is_pinned_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(environment, "_run", lambda command, *_: commands.append(command))
    told: list[str] = []
    for pins in ({"dbos": "1"}, {"dbos": "1"}, {"dbos": "2"}):
        monkeypatch.setattr(environment, "pinned", lambda pins=pins: pins)
        assert ready(lambda what, *_: told.append(what), tmp_path / "peers") == tmp_path / "peers/bin/python"
    installed = [command for command in commands if "install" in command]
    assert ["dbos==1" in installed[0], "dbos==2" in installed[1], len(installed)] == [True, True, 2]
    assert told == ["making the peers' environment"] * 2


def test_an_environment_that_cannot_be_made_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As without a network: here the first program already fails."""
    with monkeypatch.context() as patched, pytest.raises(BenchmarkError, match="takes a package index") as raised:
        patched.setattr(sys, "executable", shutil.which("false"))
        ready(lambda *_: None, tmp_path)
    assert "\n" not in str(raised.value)
    again: list[list[str]] = []
    monkeypatch.setattr(environment, "_run", lambda command, *_: again.append(command))
    ready(lambda *_: None, tmp_path)
    assert len(again) == 2  # what was begun is not taken for what is ready


def test_calls_that_no_peer_has_are_told_in_one_line(run: Run, server: str) -> None:
    status, out, err = run("--only", "list,delete", "--dsn", server)
    assert (status, out, err) == (2, "", "benchmarks: no peer has any of these calls: list, delete\n")
