"""`get` by pgbench, which is written in C and decodes nothing: what the server and the way to it cost alone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg import conninfo

from nl2state import TenantScope
from tests.benchmarks.by_hand import GET, ByHand, connect
from tests.benchmarks.parts import BenchmarkError
from tests.benchmarks.sides import PGBENCH

__all__ = ["CALL", "Pgbench", "environment", "find", "opened"]

CALL: Final = "get"
"""The call that it makes."""

_RECORDS = 200
_CALLS_MIN = 16_000  # in a round, of all clients: each connects and prepares anew
_TIMEOUT_SECONDS = 300.0
_TPS = re.compile(r"^tps = ([\d.]+) \((?:without|excluding)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Pgbench:
    """A contender in a process of its own: so many clients, and half as many threads."""

    binary: Path
    script: Path
    environment: dict[str, str]
    clients: int

    name = PGBENCH

    def round(self, call: str, calls: int) -> float:
        """Read records at random, each client so often or more, and return what one read took, in microseconds."""
        assert call == CALL
        options = {
            "--client": self.clients,
            "--jobs": max(1, self.clients // 2),
            "--transactions": max(calls, _CALLS_MIN // self.clients),
            "--file": self.script,
            "--define": f"scope={TenantScope.local().uuid}",
        }
        words = [str(self.binary), "--no-vacuum", "--protocol=prepared"]
        run = subprocess.run(
            [*words, *(f"{name}={value}" for name, value in options.items())],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=_TIMEOUT_SECONDS,
        )
        rate = _TPS.search(run.stdout)
        if run.returncode != 0 or rate is None:
            raise BenchmarkError(f"pgbench failed: {(run.stderr.strip().splitlines() or ['it said nothing'])[-1]}")
        return 1e6 * self.clients / float(rate[1])


@lru_cache
def find(dsn: str) -> tuple[Path, str] | None:
    """Return a pgbench and its version: one beside the server's own binaries, on the PATH, or of a Debian package."""
    candidates = [found for found in (_beside_server(dsn), shutil.which("pgbench")) if found is not None]
    candidates += sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin/pgbench")), reverse=True)
    for candidate in candidates:
        with suppress(OSError, subprocess.SubprocessError, IndexError):  # "pgbench (PostgreSQL) 18.1 (...)"
            run = subprocess.run([candidate, "--version"], capture_output=True, text=True, check=True, timeout=10.0)
            return Path(candidate), run.stdout.split()[2]
    return None


@contextmanager
def opened(dsn: str, schema: str, clients: int, *, durable: bool) -> Iterator[Pgbench | None]:
    """Yield a contender, with records to read, and sessions set up as those by hand; None where there is no pgbench."""
    found = find(dsn)
    if found is None:
        yield None
        return
    of_all = _RECORDS * clients
    with connect(dsn, schema, durable=durable) as connection:
        side = ByHand(connection)
        for number in range(of_all):
            side.put(str(number))
    with tempfile.TemporaryDirectory(prefix="nl2state-benchmark-") as folder:
        script = Path(folder) / "get.sql"
        select = GET.replace("$1", ":scope").replace("$2", ":record_id")
        script.write_text(f"\\set record_id random(0, {of_all - 1})\n{select};\n", encoding="utf-8")
        yield Pgbench(found[0], script, environment(dsn, schema, durable=durable), clients)


def environment(dsn: str, schema: str, *, durable: bool) -> dict[str, str]:
    """Return what leads any libpq program to the server: what is in its arguments, everybody on the machine can read.

    Its session has every setting of a session by hand.
    """
    with connect(dsn, schema, durable=durable) as connection:
        query = "SELECT name, current_setting(name) FROM pg_settings WHERE source = 'session'"
        settings = connection.execute(query).fetchall()
    options = " ".join(f"-c {name}={_escaped(value)}" for name, value in settings)
    given: dict[str, Any] = dict(conninfo.conninfo_to_dict(dsn))
    given["options"] = f"{given.get('options', '')} {options}".strip()
    variables = {
        option.keyword.decode(): option.envvar.decode()
        for option in psycopg.pq.Conninfo.get_defaults()
        if option.envvar is not None
    }
    told = {variables[name]: str(value) for name, value in given.items() if name in variables and value is not None}
    return {**os.environ, "LC_ALL": "C", **told}


def _escaped(value: str) -> str:
    return re.sub(r"([\\\s])", r"\\\1", value)


def _beside_server(dsn: str) -> str | None:
    with suppress(psycopg.Error), psycopg.connect(dsn) as connection:  # which not every role may ask
        row = connection.execute("SELECT setting FROM pg_config WHERE name = 'BINDIR'").fetchone()
        if row is not None and (path := Path(row[0]) / "pgbench").is_file():
            return str(path)
    return None
