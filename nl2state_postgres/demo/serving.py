"""A worker process: it reads which delivery to do as a JSON line on stdin, and answers with a JSON line on stdout.

The first line that it reads is its charge: where the store and the input are. It ends at the end of its stdin, and is
killed with its parent.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from nl2state import BusyError, FencingRejectedError, StoreError
from nl2state_postgres.demo.deliveries import Delivery, parse
from nl2state_postgres.embedded import die_with_parent

__all__ = ["TRANSACTION_IDLE_SECONDS", "TTL_SECONDS", "WAIT_SECONDS", "Answer", "Charge", "Deliver", "Reached", "serve"]

TTL_SECONDS = 1.5
"""The life of a lease and of an attempt: so long a dead worker keeps others from its record."""

TRANSACTION_IDLE_SECONDS = 2.0
"""How long the server lets a stopped worker's transaction be open. Longer than the TTL, so that it shows."""

WAIT_SECONDS = 0.1
"""How long a worker waits for a lease before it sends the delivery back. A lease is held for some milliseconds."""


@dataclass(frozen=True, slots=True)
class Charge:
    """What a worker is told when it starts."""

    dsn: str
    schema: str
    input: str
    name: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a delivery: applied, replayed, later (it was busy), refused (by the fence), or failed."""

    kind: str
    taken_over: bool = False
    retry_after_seconds: float = 0.0
    code: str = ""


class Reached:
    """Called by a worker at each point that it reaches: it times the calls, and stops the process where it is told."""

    def __init__(self, copy: int, stop_at: str | None, tell: Callable[[dict[str, Any]], None]) -> None:
        self.calls: dict[str, float] = {}
        """The seconds of each call that was made."""
        self._copy = copy
        self._stop_at = stop_at
        self._tell = tell
        self._since = time.perf_counter()

    def __call__(self, point: str, call: str | None = None) -> None:
        """Note that `call`, where it is given, took all the time since the last point. Stop if this is the place."""
        if call is not None:
            self.calls[call] = time.perf_counter() - self._since
        if point == self._stop_at:
            self._tell({"copy": self._copy, "stopped": point})
            os.kill(os.getpid(), signal.SIGSTOP)
        self._since = time.perf_counter()


Deliver: TypeAlias = Callable[[Delivery, Reached], Answer]
"""What a worker does with a delivery that it is sent."""


def serve(opened: Callable[[Charge], AbstractContextManager[Deliver]]) -> None:
    """Do what stdin asks for, one delivery after the other, until it ends. The parent's process id is argv[1]."""
    die_with_parent(signal.SIGKILL, parent_pid=int(sys.argv[1]))
    answers = os.dup(1)
    os.dup2(2, 1)  # whatever else is printed is no answer

    def tell(message: dict[str, Any]) -> None:
        os.write(answers, json.dumps(message).encode() + b"\n")  # less than a pipe takes at once

    charge = Charge(**json.loads(sys.stdin.buffer.readline()))
    with open(charge.input, "rb") as file, opened(charge) as deliver:  # noqa: PTH123  # read by its descriptor
        tell({"ready": True})
        for line in sys.stdin.buffer:
            asked = json.loads(line)
            delivery = parse(os.pread(file.fileno(), asked["length"], asked["offset"]))
            reached = Reached(asked["copy"], asked.get("stop_at"), tell)
            answer = _answer(deliver, delivery, reached)
            tell({"copy": asked["copy"], **asdict(answer), "calls": reached.calls})


def _answer(deliver: Deliver, delivery: Delivery, reached: Reached) -> Answer:
    try:
        return deliver(delivery, reached)
    except BusyError as busy:
        return Answer("later", retry_after_seconds=busy.retry_after_seconds, code=busy.code)
    except FencingRejectedError as refused:
        return Answer("refused", code=refused.code)
    except StoreError as failed:
        return Answer("failed", code=failed.code)
