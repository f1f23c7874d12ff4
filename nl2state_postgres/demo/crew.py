"""The worker processes, as their parent sees them."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from nl2state_postgres.demo.faults import Fault
from nl2state_postgres.demo.serving import Charge

__all__ = ["Crew", "Worker"]

_END_SECONDS = 5.0
_READ_BYTES = 65_536


class Worker:
    """A worker process, and what it has in hand."""

    def __init__(self, module: str, charge: Charge, log: Path) -> None:
        with log.open("ab") as errors:
            self._process = subprocess.Popen(  # noqa: S603  # our own module
                [sys.executable, "-m", module, str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,  # a Ctrl-C in the terminal is the parent's to handle
            )
        self._unread = b""
        self.in_hand: set[int] = set()
        """The copies that it was sent and has not answered."""
        self.ready = False
        self.paused = False
        self.paused_at = ""
        self.leaving = False
        """It was continued, and ends when it has answered what it has in hand: another has taken its place."""
        self.fault: Fault | None = None
        self.fault_copy = -1
        self.send(asdict(charge))

    @property
    def answers(self) -> int:
        """The descriptor of the pipe that its answers come from."""
        assert self._process.stdout is not None  # noqa: S101  # for mypy: it is a pipe
        return self._process.stdout.fileno()

    def send(self, message: dict[str, Any]) -> None:
        """Send a line. A worker that is dead does not get it, which the end of its answers will tell."""
        assert self._process.stdin is not None  # noqa: S101  # for mypy: it is a pipe
        with suppress(BrokenPipeError):
            os.write(self._process.stdin.fileno(), json.dumps(message).encode() + b"\n")

    def receive(self) -> list[dict[str, Any]] | None:
        """Return the messages that have come, None at their end. Blocks until there is something."""
        data = os.read(self.answers, _READ_BYTES)
        if not data:
            return None
        *lines, self._unread = (self._unread + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def is_stopped(self) -> bool:
        """Whether a SIGSTOP has reached it, and it is alive."""
        flags = os.WSTOPPED | os.WNOHANG | os.WNOWAIT
        try:
            return os.waitid(os.P_PID, self._process.pid, flags) is not None
        except ChildProcessError:  # it is dead, and can never stop
            return False

    def dismiss(self) -> None:
        """Let it end when it has done what it was sent."""
        assert self._process.stdin is not None  # noqa: S101  # for mypy: it is a pipe
        self._process.stdin.close()

    def end(self, bound_seconds: float) -> int:
        """Wait for its end, kill it after the bound, and return its exit status: negative for a signal."""
        try:
            status = self._process.wait(bound_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        return status


class Crew:
    """The workers of a run. None is left when its block ends."""

    def __init__(self, module: str, charge: Charge, log: Path) -> None:
        self._module = module
        self._charge = charge
        self._log = log
        self._started = 0
        self._selector = selectors.DefaultSelector()
        self.workers: list[Worker] = []

    def start(self) -> None:
        """Start one more."""
        self._started += 1
        charge = replace(self._charge, name=f"worker-{self._started}")
        worker = Worker(self._module, charge, self._log)
        self.workers.append(worker)
        self._selector.register(worker.answers, selectors.EVENT_READ, worker)

    def listen(self, bound_seconds: float) -> Iterator[tuple[Worker, list[dict[str, Any]] | None]]:
        """Yield the workers from which something came, with it: None for one that has ended."""
        for key, _ in self._selector.select(bound_seconds):
            yield key.data, key.data.receive()

    def remove(self, worker: Worker) -> int:
        """Forget a worker that has ended, and return its exit status."""
        self._selector.unregister(worker.answers)
        self.workers.remove(worker)
        return worker.end(_END_SECONDS)

    def log_tail(self) -> str:
        """Return the last line that a worker wrote to its stderr, or nothing."""
        lines = self._log.read_text(errors="replace").strip().splitlines() if self._log.exists() else []
        return lines[-1] if lines else ""

    def dismiss(self) -> None:
        """Let all of them end in order."""
        for worker in self.workers:
            worker.dismiss()
        deadline = time.monotonic() + _END_SECONDS
        for worker in list(self.workers):
            worker.end(max(0.0, deadline - time.monotonic()))
        self.workers.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self.workers:  # after dismiss there is none
            worker.signal(signal.SIGKILL)
        for worker in self.workers:
            worker.end(_END_SECONDS)
        self._selector.close()
