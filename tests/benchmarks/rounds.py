"""Rounds: one contender and then another, again and again, so that what else the machine does falls on all of them."""

from __future__ import annotations

import gc
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self, TypeVar

from tests.benchmarks.crowds import Crowd
from tests.benchmarks.sides import OURS, PAGE_SIZE, Lane, Side

__all__ = ["Calling", "Contender", "Ratio", "Result", "Team", "TeamOnLanes", "compare", "team_of"]

S = TypeVar("S")
L = TypeVar("L")

_WEIGHTS = {"list": PAGE_SIZE // 10, "transaction": 2}
"""How many calls of the others one call of these counts for: so that each round takes about as long."""


class Ratio(NamedTuple):
    """The median of some ratios, and the quartiles: half of them are between these."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, ratios: Sequence[float]) -> Self:
        """Sum up the ratios of some rounds, or of one."""
        if len(ratios) == 1:
            return cls(ratios[0], ratios[0], ratios[0])
        low, median, high = statistics.quantiles(ratios, n=4, method="inclusive")
        return cls(median, low, high)

    def figures(self) -> dict[str, Any]:
        """Return it for a program."""
        return {"median": round(self.median, 3), "quartiles": [round(self.low, 3), round(self.high, 3)]}

    def words(self) -> list[str]:
        """Return it for people, in two columns."""
        return [f"{self.median:.2f}", f"{self.low:.2f}-{self.high:.2f}"]


@dataclass(frozen=True, slots=True)
class Result:
    """What one call took, with so many threads at once.

    By contender: of each round, the microseconds that a thread waited for a call.
    """

    call: str
    crowd: Crowd
    us: Mapping[str, tuple[float, ...]]

    def ratio(self, name: str, to: str = OURS) -> Ratio:
        """Return how many times as long as another a contender took, round by round: above 1, the other was faster."""
        return Ratio.of([theirs / others for theirs, others in zip(self.us[name], self.us[to], strict=True)])

    def median_us(self, name: str) -> float:
        """Return the median of a contender's rounds."""
        return statistics.median(self.us[name])

    def figures(self) -> dict[str, Any]:
        """Return it for a program: medians, and how many times as long as ours each contender took."""
        return {
            "call": self.call,
            "threads": self.crowd.threads,
            "connections": self.crowd.connections,
            "us": {name: round(self.median_us(name), 1) for name in self.us},
            "ratios": {name: self.ratio(name).figures() for name in self.us if name != OURS},
        }


class Contender(Protocol):
    """Who makes calls."""

    @property
    def name(self) -> str:
        """Whose figures these are."""
        ...

    def round(self, call: str, calls: int) -> float:
        """Make so many calls on each thread, and return the microseconds that a thread waited for one of them."""
        ...


class Calling(Protocol):
    """What one thread makes calls with: a side that has them, and what is to be given to the next one. As a Lane."""

    @property
    def side(self) -> Any:
        """Whose methods the calls are."""
        ...

    def arguments(self, call: str) -> tuple[Any, ...]:
        """Return the arguments of the next such call, before the clock starts."""
        ...


class Team:
    """Threads that make calls at the same time, each on a lane of its own."""

    def __init__(self, threads: int, executor: ThreadPoolExecutor) -> None:
        self.threads = threads
        self._executor = executor
        self._pending: list[list[tuple[Any, ...]]] = []
        self._stopped = False
        self._start = threading.Barrier(threads, _collect_garbage)  # else one side's rubbish is the other's pause

    def lanes(self, sides: Sequence[Side], name: str = "") -> list[Lane]:
        """Make a lane for each thread. What they work on bears the name: another team can work on the same schema."""
        return self.made(Lane, sides, name or str(self.threads))

    def made(self, make: Callable[[S, str], L], sides: Sequence[S], name: str) -> list[L]:
        """Make something of the side of each thread, in the threads: an interrupt comes to the main one alone."""
        return list(self._executor.map(make, sides, [f"{name}-{number}" for number in range(self.threads)]))

    def round(self, lanes: Sequence[Calling], call: str, calls: int) -> float:
        """Make so many calls on each lane, and return the microseconds that a thread waited for one of them.

        That is the time from the first thread's start to the last one's end: a thread that starves is counted.
        """
        self._pending.clear()
        self._start.reset()
        futures = [self._executor.submit(self._work, lane, call, calls) for lane in lanes]
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:  # the others only did not start
            raise min(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError))
        times = [future.result() for future in futures]
        return (max(ended for _, ended in times) - min(started for started, _ in times)) / 1_000 / calls

    def stop(self) -> None:
        """Let the threads end soon."""
        self._stopped = True
        self._start.abort()
        for pending in self._pending:
            pending.clear()

    def _work(self, lane: Calling, call: str, calls: int) -> tuple[int, int]:
        try:
            method: Callable[..., object] = getattr(lane.side, call)
            pending: list[tuple[Any, ...]] = []
            while len(pending) < calls and not self._stopped:
                pending.append(lane.arguments(call))
            pending.reverse()
            self._pending.append(pending)
        except BaseException:
            self._start.abort()
            raise
        self._start.wait()
        started = time.perf_counter_ns()
        while pending:
            method(*pending.pop())
        return started, time.perf_counter_ns()


def _collect_garbage() -> None:
    gc.collect()


@contextmanager
def team_of(threads: int) -> Iterator[Team]:
    """Yield a team, whose threads have ended when the block has, however it ended."""
    with ThreadPoolExecutor(threads) as executor:
        team = Team(threads, executor)
        try:
            yield team
        finally:
            team.stop()


@dataclass(frozen=True, slots=True)
class TeamOnLanes:
    """A contender in this process: a side of the calls."""

    name: str
    team: Team
    lanes: Sequence[Calling]

    def round(self, call: str, calls: int) -> float:
        """Make the calls."""
        return self.team.round(self.lanes, call, calls)


def compare(contenders: Sequence[Contender], call: str, crowd: Crowd, *, rounds: int, calls: int) -> Iterator[Result]:
    """Measure a call in so many rounds of about so many calls, and yield what is known after each.

    A round of each contender comes before and is not counted: it prepares the statements on each connection.
    """
    each = max(1, calls // crowd.threads // _WEIGHTS.get(call, 1))
    for contender in contenders:
        contender.round(call, each)
    measured: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    for number in range(rounds):
        for contender in _in_turn(contenders, number):
            measured[contender.name].append(contender.round(call, each))
        yield Result(call, crowd, {name: tuple(us) for name, us in measured.items()})


def _in_turn(contenders: Sequence[Contender], number: int) -> list[Contender]:
    """Return the order of a round: each comes first, last and after each other about as often."""
    begin = number // 2 % len(contenders)
    order = [*contenders[begin:], *contenders[:begin]]
    return order if number % 2 == 0 else order[::-1]
