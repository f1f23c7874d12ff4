"""A folder that stands in for /tmp, and Pythons that have the supervisor."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from nl2state_postgres import embedded
from tests.postgres.embedded.server import Python, processes_in


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
