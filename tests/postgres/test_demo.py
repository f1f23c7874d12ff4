"""The demo: its parts, and whole runs as a user starts them, after which nothing is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psycopg
import pytest

from nl2state_postgres.cli import main
from nl2state_postgres.demo import inbox
from nl2state_postgres.demo.crew import Crew
from nl2state_postgres.demo.faults import Fault, Script
from nl2state_postgres.demo.serving import Charge
from nl2state_postgres.embedded import EmbeddedPostgres

KEYS = "deliveries sent replayed kills takeovers stale_refused lost doubled seconds calls"
CALLS = "reserve acquire get write complete commit release"
BOUND_SECONDS = 60.0
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")


class TestScript:
    def test_from_twenty_deliveries_on_every_fault_comes(self) -> None:
        for deliveries in (20, 60, 321, 2_000, 20_000):
            faults = []
            script = Script(deliveries)
            for begun in range(deliveries + 1):
                while fault := script.next(begun):
                    faults.append(fault)
                    script.take()
            points = {fault.point for fault in faults if fault.action == "kill"}
            assert points == {"reserved", "leased", "in_transaction", "committed", "released"}
            assert {fault.point for fault in faults if fault.action == "pause"} == {"leased", "in_transaction"}
            assert len(faults) <= 22

    def test_a_fault_that_could_not_be_done_is_due_again(self) -> None:
        script = Script(1)
        fault = script.next(1)
        assert fault == Fault("pause", "leased")
        script.take()
        assert script.next(1) is None
        script.put_back(fault)
        assert script.next(1) == fault


@LINUX
class TestInbox:
    @pytest.mark.parametrize(
        ("module", "words"),
        [("hang", "nothing moved for"), ("no_such_module", "its workers fail .*No module named no_such_module")],
    )
    def test_workers_that_hang_or_fail_end_the_run(
        self, module: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(inbox, "_STALLED_SECONDS", 1.0 if module == "hang" else BOUND_SECONDS)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        (tmp_path / "hang.py").write_text("import sys; sys.stdin.read()")
        charge = Charge(dsn="", schema="", input="", name="")
        with Crew(module, charge, tmp_path / "log") as crew:
            sending = inbox.Inbox(crew, [inbox.Place(0, 1, ("a", "r"))], 1, lambda *_: None)
            with pytest.raises(inbox.DemoError, match=words):
                sending.run(2)


@dataclass
class Place:
    """A temporary folder that everything of a run has to be in, and that tells its processes from others'."""

    folder: Path

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        # where the tests run in the background, SIGINT is ignored, and would be by their children
        heed = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
        code = f"{heed}; from nl2state_postgres.cli import main; main()"
        return subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            env={**os.environ, "TMPDIR": str(self.folder), "COLUMNS": "200"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """Run the command to its end, and return its exit status, its stdout and its stderr."""
        with self.start(*arguments) as process:
            out, err = process.communicate(timeout=BOUND_SECONDS)
        return process.returncode, out, err

    def processes(self, word: str = "") -> list[int]:
        """Return the processes of this folder: it is in their environment, or in their command line."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended meanwhile
                command = (entry / "cmdline").read_bytes()
                environment = (entry / "environ").read_bytes()
                mark = os.fsencode(str(self.folder))
                if (mark in command or mark in environment) and word.encode() in command:
                    found.append(int(entry.name))
        return found

    def await_workers(self, process: subprocess.Popen[str], count: int) -> list[int]:
        """Return the workers once so many have opened the store: its threads are there."""
        deadline = time.monotonic() + BOUND_SECONDS
        while (
            len(workers := [pid for pid in self.processes("nl2state_postgres.demo.worker") if threads(pid) > 1]) < count
        ):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return workers

    def await_no_process(self) -> None:
        deadline = time.monotonic() + BOUND_SECONDS
        while self.processes():
            assert time.monotonic() < deadline, self.processes()
            time.sleep(0.01)

    def is_empty(self) -> bool:
        return not self.processes() and not list(self.folder.iterdir())


@pytest.fixture
def place() -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="nl2state-test-", dir="/tmp") as folder:  # short: a socket is in it
        Path(folder).chmod(0o755)  # a server that root starts runs as nobody
        yield Place(Path(folder))


@LINUX
class TestRun:
    def test_nothing_is_lost_or_doubled_whatever_is_killed_and_nothing_is_left(self, place: Place) -> None:
        """P2, P4, P6, P7."""
        status, out, err = place.run("demo", "--deliveries", "60", "--json")
        assert (status, err) == (0, "")
        found = json.loads(out)
        assert " ".join(found) == KEYS
        assert (found["deliveries"], found["lost"], found["doubled"]) == (60, 0, 0)
        least = {"sent": 61, "replayed": 1, "kills": 5, "takeovers": 2, "stale_refused": 1}
        assert {key: found[key] for key, count in least.items() if found[key] < count} == {}
        assert " ".join(found["calls"]) == CALLS
        for call in found["calls"].values():
            assert call.keys() == {"count", "p50_ms", "p99_ms"}
            assert 0 < call["p50_ms"] <= call["p99_ms"]
        assert place.is_empty()

    def test_without_the_library_there_is_damage_and_it_is_explained(self, place: Place) -> None:
        status, out, err = place.run("demo", "--deliveries", "30", "--without")
        assert (status, err) == (1, "")
        assert "doubled: a worker was killed" in out
        assert "lost updates" in out
        assert place.is_empty()

    def test_a_worker_that_somebody_else_kills_is_replaced(self, place: Place) -> None:
        with place.start("demo", "--deliveries", "2", "--workers", "2") as process:
            os.kill(place.await_workers(process, 2)[0], signal.SIGKILL)
            out, err = process.communicate(timeout=BOUND_SECONDS)
        assert (process.returncode, err) == (0, "")
        assert "Each delivery took effect exactly once" in out
        assert place.is_empty()

    def test_a_run_that_is_asked_to_end_leaves_nothing_on_a_users_own_server(self, place: Place) -> None:
        with EmbeddedPostgres() as server:
            with place.start("demo", "--deliveries", "5000", "--dsn", server.dsn) as process:
                place.await_workers(process, 4)
                process.send_signal(signal.SIGTERM)
                out, err = process.communicate(timeout=BOUND_SECONDS)
            assert (process.returncode, out, err) == (143, "", "nl2state: interrupted\n")
            assert place.is_empty()
            assert schemas(server.dsn) == []

    def test_a_ctrl_c_stops_the_temporary_server_too(self, place: Place) -> None:
        with place.start("demo", "--deliveries", "5000") as process:
            place.await_workers(process, 4)
            assert place.processes("postgres")
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=BOUND_SECONDS)
        assert (process.returncode, out, err) == (130, "", "nl2state: interrupted\n")
        assert place.is_empty()

    def test_when_the_parent_is_killed_no_process_is_left(self, place: Place) -> None:
        with place.start("demo", "--deliveries", "5000") as process:
            os.kill(place.await_workers(process, 4)[0], signal.SIGSTOP)  # a worker that cannot see that it is alone
            process.kill()
            process.communicate(timeout=BOUND_SECONDS)
        place.await_no_process()


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command in this process, and return its exit status, its stdout and its stderr."""

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["nl2state", *arguments])
        with pytest.raises(SystemExit) as exited:
            main()
        assert isinstance(exited.value.code, int)
        return exited.value.code, *capsys.readouterr()

    return call


class TestCommand:
    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["demo", "--dsn", "host=/nowhere dbname=x password=hunter2"], "the server cannot be reached"),
            (["demo", "--dsn", "hunter2/"], "dsn cannot be read"),
            (["demo", "--input", "/nowhere/input.jsonl"], "/nowhere/input.jsonl: No such file or directory"),
            (["migrate", "--dsn", "host=/nowhere dbname=x password=hunter2"], "the server cannot be reached"),
            (["migrate", "--dsn", "host=/nowhere", "--schema", "pg_x"], "schema is not a name"),
        ],
    )
    def test_what_cannot_be_done_is_told_in_one_line(self, run: Run, arguments: list[str], words: str) -> None:
        status, out, err = run(*arguments)
        assert (status, out) == (2, "")
        assert err.startswith("nl2state: ")
        assert err.count("\n") == 1
        assert words in err
        assert "hunter2" not in err

    def test_an_option_that_makes_no_sense_is_refused(self, run: Run) -> None:
        for arguments in (["--workers", "0"], ["--deliveries", "-1"], ["--input", "x", "--deliveries", "1"]):
            status, out, _ = run("demo", *arguments)
            assert (status, out) == (2, "")

    def test_without_its_libraries_it_says_what_to_install(self) -> None:
        code = "import sys; sys.modules['typer'] = None; from nl2state_postgres.cli import main"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert "pip install 'nl2state[cli]'" in done.stderr
        assert done.stderr.count("\n") == 1

    def test_on_a_server_that_is_there(self, run: Run, tmp_path: Path) -> None:
        empty = tmp_path / "empty.jsonl"
        empty.touch()
        with EmbeddedPostgres() as server:
            status, out, _ = run("demo", "--input", str(empty), "--dsn", server.dsn)
            assert status == 0
            assert "nothing to see" in out
            assert schemas(server.dsn) == []
            first, second = (run("migrate", "--dsn", server.dsn, "--schema", "mine") for _ in range(2))
            assert schemas(server.dsn) == ["mine"]
        assert (first[0], second[0]) == (0, 0)
        assert second[1] == "schema mine: 0 migrations applied\n"
        assert first[1] != second[1]

    def test_it_tells_its_version(self, run: Run) -> None:
        assert run("--version") == (0, f"nl2state {version('nl2state')}\n", "")


def threads(pid: int) -> int:
    with suppress(OSError):
        return len(list(Path(f"/proc/{pid}/task").iterdir()))
    return 0


def schemas(dsn: str) -> list[Any]:
    query = "SELECT nspname FROM pg_namespace WHERE nspname !~ '^(pg_|public$|information_schema$)'"
    with psycopg.connect(dsn) as connection:
        return [name for (name,) in connection.execute(query)]
