"""A peer's process, as its parent sees it: worker.py says what they tell each other."""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from psycopg.conninfo import conninfo_to_dict

from tests.benchmarks.parts import BenchmarkError

__all__ = ["ROOT", "Peer"]

ROOT = Path(__file__).parents[3]
"""The project's folder: a peer's process imports from it."""

_WORKER = "tests.benchmarks.peers.worker"
_OPEN_SECONDS = 120.0
_ROUND_SECONDS = 60.0
_CALL_SECONDS = 0.05  # far more than any call takes; a round's bound grows with its calls
_END_SECONDS = 10.0
_READ_BYTES = 65_536
_SECRETS = ("password", "sslpassword")
_URL = re.compile(r"postgres(ql)?(\+\w+)?://\S+")


class Peer:
    """A process with one peer, opened for so many threads. It is gone when the block ends.

    The DSN comes to it on stdin, where nobody else sees it. Raises BenchmarkError where the process ends or says
    nothing: its log is what that said on stderr, without a DSN.
    """

    def __init__(self, name: str, python: Path, side: str, dsn: str, threads: int) -> None:
        self._name = name
        self._dsn = dsn
        self._threads = threads
        self._unread = b""
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  # __exit__ closes it
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        self._process = subprocess.Popen(
            [python, "-m", _WORKER],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            start_new_session=True,  # a Ctrl-C in the terminal is the parent's to handle
        )
        self._charge = {"side": side, "dsn": dsn, "threads": threads}

    def round(self, call: str, calls: int) -> float:
        """Make so many calls in each thread, and return the microseconds that a thread waited for one of them."""
        bound_seconds = _ROUND_SECONDS + calls * self._threads * _CALL_SECONDS
        microseconds: float = self._ask({"round": call, "calls": calls}, bound_seconds)["us"]
        return microseconds

    def _ask(self, message: dict[str, Any], bound_seconds: float) -> dict[str, Any]:
        deadline = time.monotonic() + bound_seconds
        self._send(message)
        while b"\n" not in self._unread:
            readable, _, _ = select.select([self._stdout], [], [], max(0.0, deadline - time.monotonic()))
            if not readable:
                raise BenchmarkError(f"{self._name} did not answer in {bound_seconds:.0f} seconds", self._log())
            data = os.read(self._stdout, _READ_BYTES)
            if not data:
                self._stop(_END_SECONDS)
                log = self._log()
                last = log.strip().rpartition("\n")[2] or "it said nothing"
                raise BenchmarkError(f"{self._name} ended with status {self._process.returncode}: {last}", log)
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it is dead, which the end of its answers will tell

    @property
    def _stdout(self) -> int:
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def _log(self) -> str:
        self._stderr.seek(0)
        return _without_dsn(self._stderr.read().decode(errors="replace"), self._dsn)

    def _stop(self, bound_seconds: float) -> None:
        try:
            self._process.wait(bound_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        try:
            self._ask(self._charge, _OPEN_SECONDS)
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let it close what it has, if all went well; else kill it."""
        self._send({"end": True}) if kind is None else self._process.kill()
        self._stop(_END_SECONDS)
        for pipe in (self._process.stdin, self._process.stdout, self._stderr):
            if pipe is not None:
                pipe.close()


def _without_dsn(text: str, dsn: str) -> str:
    secrets = [str(value) for name, value in conninfo_to_dict(dsn).items() if name in _SECRETS]
    for secret in filter(None, [dsn, *secrets]):
        text = text.replace(secret, "***")
    return _URL.sub("***", text)
