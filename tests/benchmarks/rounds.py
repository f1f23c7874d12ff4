"""Rounds: one side and then the other, again and again, so that what else the machine does falls on both."""

from __future__ import annotations

import gc
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from tests.benchmarks.sides import PAGE_SIZE, Lane, Side

__all__ = ["Result", "Team", "compare", "team_of"]

Sides: TypeAlias = tuple[Sequence[Lane], Sequence[Lane]]
"""The lanes of ours and of those by hand, one a thread."""

_WEIGHTS = {"list": PAGE_SIZE // 10, "transaction": 2}
"""How many calls of the others one call of these counts for: so that each round takes about as long."""


@dataclass(frozen=True, slots=True)
class Result:
    """What one call took, with so many threads at once: of each round, microseconds from its call to its answer."""

    call: str
    threads: int
    ours_us: tuple[float, ...]
    by_hand_us: tuple[float, ...]

    @property
    def ratios(self) -> list[float]:
        """By hand / ours, of each round, in order: above 1, ours was faster."""
        return sorted(by_hand / ours for ours, by_hand in zip(self.ours_us, self.by_hand_us, strict=True))

    @property
    def ratio(self) -> float:
        """The median of the rounds' ratios."""
        return statistics.median(self.ratios)

    @property
    def spread(self) -> tuple[float, float]:
        """The quartiles of the rounds' ratios: half of the rounds are between them."""
        ratios = self.ratios
        if len(ratios) == 1:
            return ratios[0], ratios[0]
        low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
        return low, high


class Team:
    """Threads that make calls at the same time, each on a lane of its own."""

    def __init__(self, threads: int, executor: ThreadPoolExecutor) -> None:
        self.threads = threads
        self._executor = executor
        self._pending: list[list[tuple[Any, ...]]] = []
        self._stopped = False
        self._start = threading.Barrier(threads, _collect_garbage)  # else one side's rubbish is the other's pause

    def lanes(self, sides: Sequence[Side]) -> list[Lane]:
        """Make a lane for each thread, in the threads: an interrupt comes to the main one, between calls."""
        return list(self._executor.map(Lane, sides, [f"{self.threads}-{number}" for number in range(self.threads)]))

    def round(self, lanes: Sequence[Lane], call: str, calls: int) -> float:
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

    def _work(self, lane: Lane, call: str, calls: int) -> tuple[int, int]:
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


def compare(team: Team, sides: Sides, call: str, *, rounds: int, calls: int) -> Iterator[Result]:
    """Measure a call in so many rounds of about so many calls, and yield what is known after each.

    One round of each side comes before and is not counted: it prepares the statements on each connection.
    """
    each = max(1, calls // team.threads // _WEIGHTS.get(call, 1))
    ours, by_hand = sides
    for lanes in sides:
        team.round(lanes, call, each)
    measured: dict[str, list[float]] = {"ours": [], "by hand": []}
    for number in range(rounds):
        pair = [("ours", ours), ("by hand", by_hand)]
        for name, lanes in pair if number % 2 == 0 else reversed(pair):
            measured[name].append(team.round(lanes, call, each))
        yield Result(call, team.threads, tuple(measured["ours"]), tuple(measured["by hand"]))
