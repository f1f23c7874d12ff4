"""What the tests of the embedded server ask it, and what they see of its processes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from nl2state_postgres.embedded import EmbeddedPostgres

AS_ROOT = os.geteuid() == 0
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux's")

Python = Callable[[str], subprocess.Popen[str]]


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


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate(timeout=20)
