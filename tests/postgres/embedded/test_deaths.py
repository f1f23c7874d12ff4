"""What is left when the server, its Python, or both are killed, interrupted or forked."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path

import psycopg
import pytest

from nl2state_postgres.embedded import EmbeddedPostgres
from tests.postgres.embedded.server import LINUX, Python, ask, first_line, kill, processes_in, wait_until

OPEN_AND_WAIT = "server = embedded.EmbeddedPostgres({home!r}).open()\nprint(server.pid, flush=True)\nsignal.pause()"


@pytest.mark.parametrize("moment", ["data.new/PG_VERSION", "data/postmaster.pid"])
def test_ctrl_c_while_it_opens_leaves_nothing(folder: Path, python: Python, moment: str) -> None:
    process = python("embedded._postmaster_pid_file = lambda data: []\nembedded.EmbeddedPostgres().open()")
    wait_until(lambda: list(folder.glob(f"*/{moment}")))
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert errors.strip().endswith("KeyboardInterrupt")
    assert processes_in(folder) == []
    assert list(folder.iterdir()) == []


def test_a_killed_server_restarts_with_what_was_committed(folder: Path) -> None:
    with EmbeddedPostgres() as server:
        ask(server, "CREATE TABLE kept AS SELECT 42 AS answer")
        before = server.pid, server.dsn
        server.kill()
        assert processes_in(folder) == []
        with pytest.raises(psycopg.OperationalError):
            ask(server, "SELECT 1")
        server.restart()
        assert ask(server, "SELECT answer FROM kept") == 42
        assert (server.pid != before[0], server.dsn) == (True, before[1])
        server.restart()
        assert ask(server, "SELECT answer FROM kept") == 42


def test_a_killed_server_is_closed_without_a_trace(folder: Path) -> None:
    with EmbeddedPostgres() as server:
        server.kill()
    assert list(folder.iterdir()) == []


@LINUX
def test_the_server_dies_with_a_killed_python_and_the_next_start_sweeps(folder: Path, python: Python) -> None:
    killed, alive = python(OPEN_AND_WAIT.format(home=None)), python(OPEN_AND_WAIT.format(home=None))
    pid = int(first_line(killed))
    first_line(alive)
    assert pid in processes_in(folder)
    kill(killed)
    wait_until(lambda: pid not in processes_in(folder))
    assert len(list(folder.iterdir())) == 2
    with EmbeddedPostgres():
        assert len(list(folder.iterdir())) == 2
        assert alive.poll() is None
    kill(alive)
    EmbeddedPostgres().open().close()
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("followed", [pytest.param(True, marks=LINUX), False])
def test_a_home_opens_right_after_its_python_was_killed(folder: Path, python: Python, followed: bool) -> None:
    """Without the parent-death signal the server outlives its Python, and the next opener stops it."""
    code = OPEN_AND_WAIT.format(home=str(folder / "home"))
    process = python(code if followed else f"embedded.die_with_parent = lambda *_, **__: None\n{code}")
    pid = int(first_line(process))
    kill(process)
    with EmbeddedPostgres(folder / "home") as server:
        assert ask(server, "SELECT 1") == 1
        assert server.pid != pid
        assert pid not in processes_in(folder)


def test_the_backends_of_a_dead_postmaster_are_waited_for(folder: Path, python: Python) -> None:
    """Python and the postmaster are killed together; a backend that is busy holds the shared memory a while longer."""
    process = python(OPEN_AND_WAIT.format(home=str(folder / "home")))
    pid = int(first_line(process))
    socket = next(folder.glob("nl2state-pg-*/socket"))
    with psycopg.connect(host=str(socket), user="postgres", autocommit=True) as connection:
        backend = connection.info.backend_pid
        os.kill(backend, signal.SIGSTOP)
        os.kill(pid, signal.SIGKILL)
        kill(process)
        wake = threading.Timer(0.5, os.kill, (backend, signal.SIGCONT))
        wake.start()
        with EmbeddedPostgres(folder / "home") as server:
            assert not wake.is_alive()
            assert ask(server, "SELECT 1") == 1
        wake.join()


def test_pythons_exit_without_close_leaves_nothing(folder: Path, python: Python) -> None:
    process = python("embedded.EmbeddedPostgres().open()\nembedded.EmbeddedPostgres().open()")
    assert process.communicate(timeout=30) == ("", "")
    assert process.returncode == 0
    assert processes_in(folder) == []
    assert list(folder.iterdir()) == []


def test_a_forked_child_does_not_stop_its_parents_server(folder: Path, python: Python) -> None:
    process = python(
        """
        warnings.simplefilter("ignore")  # Python 3.12 warns of a fork in a process that has threads
        with embedded.EmbeddedPostgres() as server:
            pid = server.pid
            if (child := os.fork()) == 0:
                sys.exit(0)  # leaves the with block, and runs atexit
            status = os.waitpid(child, 0)[1]
            os.kill(pid, 0)
            print(status, server.pid == pid, flush=True)
        """
    )
    assert process.communicate(timeout=30) == ("0 True\n", "")
    assert list(folder.iterdir()) == []


def test_the_server_outlives_the_thread_that_opened_it(folder: Path) -> None:
    server = EmbeddedPostgres()
    opener = threading.Thread(target=server.open)
    opener.start()
    opener.join()
    with contextlib.closing(server):
        time.sleep(0.1)  # for the signal that must not come
        assert ask(server, "SELECT 1") == 1


@LINUX
def test_a_process_whose_parent_is_gone_already_exits(folder: Path, python: Python) -> None:
    process = python("embedded.die_with_parent(signal.SIGTERM, parent_pid=os.getpid())\nprint('here')")
    assert process.communicate(timeout=30) == ("", "")
    assert process.returncode == 1
