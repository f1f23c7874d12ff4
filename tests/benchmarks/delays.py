"""P13: how long a holder that is killed or stopped delays its successor, with real processes."""

from __future__ import annotations

import select
import signal
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from nl2state_postgres.demo.crew import Worker
from nl2state_postgres.demo.serving import TRANSACTION_IDLE_SECONDS, TTL_SECONDS, Charge
from tests.benchmarks.parts import BenchmarkError, Ground, Part
from tests.benchmarks.report import Report, Table
from tests.benchmarks.sides import OURS

__all__ = ["BOUND_SECONDS", "HARMS", "PART", "Delay", "DelayError", "Delays", "Harm", "measure"]

BOUND_SECONDS: Final = TTL_SECONDS + TRANSACTION_IDLE_SECONDS
"""P13's bound."""

_ROUNDS = 5
_MODULE = "tests.benchmarks.holder"
_COMMITTED = "COMMITTED"
_PATIENCE_SECONDS = 30.0
_END_SECONDS = 5.0


class DelayError(BenchmarkError):
    """It could not be measured."""


@dataclass(frozen=True, slots=True)
class Harm:
    """What is done to the holder, and whether it has a transaction with a fenced write open then."""

    signal: signal.Signals
    in_transaction: bool

    def __str__(self) -> str:
        verb = "killed" if self.signal == signal.SIGKILL else "stopped"
        return f"{verb} {'inside' if self.in_transaction else 'outside'} a transaction"


HARMS: Final = (
    Harm(signal.SIGKILL, in_transaction=False),
    Harm(signal.SIGSTOP, in_transaction=False),
    Harm(signal.SIGSTOP, in_transaction=True),
    Harm(signal.SIGKILL, in_transaction=True),
)


@dataclass(frozen=True, slots=True)
class Delay:
    """The seconds from the harm to the successor's grant, each time; and how the late writes ended, by code."""

    harm: Harm
    seconds: tuple[float, ...]
    late: tuple[str, ...]

    @property
    def median_seconds(self) -> float:
        """The median."""
        return statistics.median(self.seconds)

    @property
    def within_bound(self) -> bool:
        """Whether P13 held each time."""
        return max(self.seconds) <= BOUND_SECONDS

    @property
    def late_writes_refused(self) -> bool | None:
        """Whether each late write was refused; None of a holder that was killed, which writes no more."""
        return _COMMITTED not in self.late if self.late else None


class Delays(Report):
    """How long each harm to a holder delayed its successor."""

    def __init__(self, delays: Sequence[Delay]) -> None:
        self._delays = delays
        kept = all(delay.within_bound and delay.late_writes_refused is not False for delay in delays)
        self.exit_status = 0 if kept else 1

    def figures(self) -> dict[str, Any]:
        """Return the delays by harm, and the bound."""
        return {
            "ttl_seconds": TTL_SECONDS,
            "transaction_idle_seconds": TRANSACTION_IDLE_SECONDS,
            "bound_seconds": BOUND_SECONDS,
            "delays": [
                {
                    "harm": str(delay.harm),
                    "median_seconds": round(delay.median_seconds, 3),
                    "max_seconds": round(max(delay.seconds), 3),
                    "within_bound": delay.within_bound,
                    "late_writes_refused": delay.late_writes_refused,
                    "late": sorted(set(delay.late)),
                }
                for delay in self._delays
            ],
        }

    def tables(self) -> list[Table]:
        """Return a table, and what it says of P13."""
        rows = []
        for delay in self._delays:
            late = {True: ", ".join(sorted(set(delay.late))), False: "IT WAS MADE", None: "there was none"}
            seconds = (f"{delay.median_seconds:.2f}", f"{max(delay.seconds):.2f}")
            rows.append((str(delay.harm), *seconds, late[delay.late_writes_refused]))
        held = "held" if all(delay.within_bound for delay in self._delays) else "DID NOT HOLD"
        return [
            Table(
                f"The delay of a successor, {len(self._delays[0].seconds)} of each",
                ("holder", "median s", "max s", "late write refused as"),
                rows,
                f"P13 {held}: at most {BOUND_SECONDS} s, which is the TTL of {TTL_SECONDS} s and the bound of"
                f" {TRANSACTION_IDLE_SECONDS} s on an open transaction.",
            )
        ]


def measure(dsn: str, schema: str, rounds: int, progress: Callable[[str, int, int], None]) -> list[Delay]:
    """Do each harm so many times. Raises DelayError where a process fails or does not answer."""
    measured = []
    with ExitStack() as resources:
        log = Path(resources.enter_context(tempfile.TemporaryDirectory(prefix="nl2state-benchmark-"))) / "processes.log"
        successor = resources.enter_context(_actor(Charge(dsn, schema, "", "successor"), log))
        for harm in HARMS:
            seconds, late = [], []
            for number in range(rounds):
                progress(str(harm), number, rounds)
                with _actor(Charge(dsn, schema, "", f"holder {harm} {number}"), log) as holder:
                    delay, ended = _harm(harm, f"{harm} {number}", holder, successor)
                seconds.append(delay)
                late += [] if ended is None else [ended]
            measured.append(Delay(harm, tuple(seconds), tuple(late)))
    return measured


def _harm(harm: Harm, resource: str, holder: _Actor, successor: _Actor) -> tuple[float, str | None]:
    """Return the successor's delay, and how the holder's late write ended where it lives on."""
    successor.tell("make", resource)
    successor.hear("made")
    holder.tell("hold", resource, in_transaction=harm.in_transaction)
    holder.hear("holding")
    successor.tell("take over", resource)
    harmed_at = time.monotonic()
    holder.worker.signal(harm.signal)
    successor.hear("granted")
    delay = time.monotonic() - harmed_at
    successor.hear("written")
    if harm.signal == signal.SIGKILL:
        return delay, None
    if not holder.worker.is_stopped():
        raise DelayError("a holder was not stopped")
    holder.worker.signal(signal.SIGCONT)
    holder.tell("go on", resource)
    ended = str(holder.hear("late"))
    successor.tell("read", resource)
    if successor.hear("value") != "successor":  # whatever the holder was told
        ended = _COMMITTED
    return delay, ended


class _Actor:
    """A process of tests.benchmarks.holder."""

    def __init__(self, worker: Worker, log: Path) -> None:
        self.worker = worker
        self._log = log
        self._heard: deque[dict[str, Any]] = deque()

    def tell(self, what: str, resource: str, **more: Any) -> None:
        """Tell it what to do."""
        self.worker.send({"do": what, "resource": resource, **more})

    def hear(self, key: str) -> Any:
        """Return what it says under this key in its next message. Raises DelayError where that does not come."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not self._heard:
            remaining = deadline - time.monotonic()
            if remaining <= 0 or not select.select([self.worker.answers], [], [], remaining)[0]:
                raise DelayError(f"a process did not answer within {_PATIENCE_SECONDS:.0f} seconds")
            messages = self.worker.receive()
            if messages is None:
                lines = self._log.read_text(errors="replace").strip().splitlines()
                raise DelayError(f"a process failed: {lines[-1] if lines else 'it said nothing'}")
            self._heard.extend(messages)
        message = self._heard.popleft()
        if key not in message:
            raise DelayError(f"a process said {message}, and not {key}")
        return message[key]


@contextmanager
def _actor(charge: Charge, log: Path) -> Iterator[_Actor]:
    """Start a process, and yield it when it is ready. It is killed when the block ends."""
    worker = Worker(_MODULE, charge, log)
    try:
        actor = _Actor(worker, log)
        actor.hear("ready")
        yield actor
    finally:
        worker.signal(signal.SIGKILL)
        worker.end(_END_SECONDS)


def _measured(ground: Ground) -> Delays:
    rounds = ground.options.rounds or _ROUNDS
    return Delays(measure(ground.dsn, ground.schemas[OURS], rounds, ground.progress))


PART: Final = Part("delays", "how long a dead or stopped holder delays its successor (P13)", _measured)
