"""PgBouncer in front of a server, which hands out a connection for a transaction: Debian's, started by the tests."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import psycopg
from psycopg import conninfo

from nl2state.testing.harness import until
from nl2state_postgres.embedded import die_with_parent

__all__ = ["BINARY", "Pooler"]

BINARY: Final = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin")
"""Where it is, or None: then the tests that need it are deselected, and the run's header says so."""

_PORT: Final = 6432


class Pooler:
    """A PgBouncer on a unix socket, in transaction mode, with so many connections to the server.

    Whoever connects becomes the role of the server's DSN, or the one that is given. As root it runs as `nobody`.
    """

    def __init__(self, server_dsn: str, *, connections: int = 2, role: str | None = None) -> None:
        self._server = conninfo.conninfo_to_dict(server_dsn)
        self._connections = connections
        if role is not None:
            self._server |= {"user": role}
        self.dsn = ""

    def __enter__(self) -> Self:
        # not pytest's folder: its path is too long for a socket, and nobody but its owner may enter
        self._folder = Path(tempfile.mkdtemp(prefix="nl2-pooler-", dir="/tmp"))
        user = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
        (self._folder / "pgbouncer.ini").write_text(self._configuration())
        for path in (self._folder, self._folder / "pgbouncer.ini"):
            os.chown(path, user.pw_uid if user else -1, user.pw_gid if user else -1)
        python_pid = os.getpid()
        self._log = (self._folder / "pgbouncer.log").open("wb")
        assert BINARY is not None
        self._process = subprocess.Popen(
            [BINARY, str(self._folder / "pgbouncer.ini")],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env={"PATH": os.defpath},
            user=user and user.pw_uid,
            group=user and user.pw_gid,
            extra_groups=user and [],
            preexec_fn=lambda: die_with_parent(signal.SIGKILL, parent_pid=python_pid),  # noqa: PLW1509  # as embedded.py says
        )
        dbname = self._server.get("dbname", "postgres")
        self.dsn = f"host={self._folder} port={_PORT} dbname={dbname} user={self._server.get('user', 'postgres')}"
        try:
            until(self._answers, "the pooler answers")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait(10)
        self._log.close()
        shutil.rmtree(self._folder)

    def _configuration(self) -> str:
        names = {"host": "host", "hostaddr": "host", "port": "port", "user": "user", "password": "password"}
        server = {names[name]: value for name, value in self._server.items() if name in names}
        server.setdefault("user", "postgres")  # a forced one: whoever connects is trusted
        words = " ".join(f"{name}='{value}'" for name, value in server.items())
        dbname = self._server.get("dbname", "postgres")
        return f"""
[databases]
{dbname} = dbname={dbname} {words}
[pgbouncer]
listen_addr =
listen_port = {_PORT}
unix_socket_dir = {self._folder}
auth_type = any
pool_mode = transaction
default_pool_size = {self._connections}
max_client_conn = 200
server_login_retry = 0
query_wait_timeout = 20
"""

    def _answers(self) -> bool:
        assert self._process.poll() is None, (self._folder / "pgbouncer.log").read_text(errors="replace")
        try:
            psycopg.connect(self.dsn, autocommit=True).close()
        except psycopg.OperationalError:
            return False
        return True
