"""The environment that the peers are installed in: beside ours, made on first use, and anew when it is out of date."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Final

from nl2state_postgres.demo.run import Progress
from tests.benchmarks.parts import BenchmarkError
from tests.benchmarks.peers.peer import ROOT

__all__ = ["FOLDER", "pinned", "ready"]

FOLDER: Final = ROOT / ".venv-peers"
"""Where it is, if nobody says otherwise."""

_REQUIREMENTS = Path(__file__).with_name("requirements.txt")
_READY = ".ready"  # written last: what was installed
_LOG = "install.log"
_MAKE_SECONDS = 600.0
_LOOK_SECONDS = 0.2
_STEPS = ("Collecting ", "Installing ")
_PIP = ("-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--retries", "1", "--timeout", "15")


def pinned() -> dict[str, str]:
    """Return the versions that are installed, by distribution."""
    lines = _REQUIREMENTS.read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def ready(progress: Progress, folder: Path = FOLDER) -> Path:
    """Return the environment's Python, once all is installed. Raises BenchmarkError where it cannot be, and OSError."""
    python = folder / "bin" / "python"
    wanted = [*(f"{name}=={number}" for name, number in pinned().items()), *_driver()]
    told = "\n".join([sys.version, *wanted])
    if (folder / _READY).exists() and (folder / _READY).read_text(encoding="utf-8") == told:
        return python
    progress("making the peers' environment", 0, 0)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    deadline = time.monotonic() + _MAKE_SECONDS
    _run([sys.executable, "-m", "venv", str(folder)], folder, deadline, progress)
    _run([str(python), *_PIP, *wanted], folder, deadline, progress)
    (folder / _READY).write_text(told, encoding="utf-8")
    return python


def _driver() -> list[str]:
    """Return the driver of our version, so that a difference of drivers is none of libraries."""
    return [f"psycopg[binary,pool]=={version('psycopg')}", f"psycopg-pool=={version('psycopg-pool')}"]


def _run(command: list[str], folder: Path, deadline: float, progress: Progress) -> None:
    log = folder / _LOG
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        while (status := _status(process)) is None and time.monotonic() < deadline:
            steps = [line for line in log.read_text(errors="replace").splitlines() if line.strip().startswith(_STEPS)]
            if steps:
                progress(f"making the peers' environment: {steps[-1].strip().partition(' (')[0][:60]}", 0, 0)
    finally:
        process.kill()
        process.wait()
    if status != 0:
        raise BenchmarkError(
            "the peers could not be installed, which takes a package index that is reachable: "
            f"{log} says what was tried"
        )


def _status(process: subprocess.Popen[bytes]) -> int | None:
    try:
        return process.wait(_LOOK_SECONDS)
    except subprocess.TimeoutExpired:
        return None
