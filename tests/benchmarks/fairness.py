"""How evenly threads are served that have to share few connections."""

from __future__ import annotations

import gc
import statistics
import threading
import time
from array import array
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from tests.benchmarks.crowds import Crowd
from tests.benchmarks.ours import open_ours
from tests.benchmarks.parts import Ground, Part
from tests.benchmarks.report import Report, Table
from tests.benchmarks.rounds import team_of
from tests.benchmarks.sides import OURS, Lane

__all__ = ["CROWD", "PART", "Fairness", "Waits"]

CROWD: Final = Crowd(32, 8)
"""Who makes short calls at once."""

_CALL = "get"
_PROGRESS_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Waits:
    """What the calls of one thread took, in milliseconds."""

    calls: int
    median_ms: float
    p99_ms: float
    max_ms: float

    @classmethod
    def of(cls, waits_ns: Sequence[int]) -> Waits:
        """Sum up the calls of a thread; one that made none waited all the time, and is all zeros."""
        ordered = sorted(waits_ns) or [0]
        p99 = ordered[max(0, -(-len(ordered) * 99 // 100) - 1)]
        return cls(len(waits_ns), statistics.median(ordered) / 1e6, p99 / 1e6, ordered[-1] / 1e6)


class Fairness(Report):
    """How often each thread was served, and how long it waited."""

    def __init__(self, threads: Sequence[Waits], seconds: float) -> None:
        self._threads = sorted(threads, key=lambda waits: waits.calls)
        self._seconds = seconds

    def figures(self) -> dict[str, Any]:
        """Return the waits of each thread, the one with the fewest calls first."""
        return {
            "fairness": {
                "call": _CALL,
                "threads": len(self._threads),
                "connections": CROWD.connections,
                "seconds": round(self._seconds, 2),
                "calls_min": self._threads[0].calls,
                "calls_max": self._threads[-1].calls,
                "p99_ms_max": round(max(waits.p99_ms for waits in self._threads), 2),
                "wait_ms_max": round(max(waits.max_ms for waits in self._threads), 2),
                "by_thread": [
                    {
                        "calls": waits.calls,
                        "median_ms": round(waits.median_ms, 2),
                        "p99_ms": round(waits.p99_ms, 2),
                        "max_ms": round(waits.max_ms, 2),
                    }
                    for waits in self._threads
                ],
            }
        }

    def tables(self) -> list[Table]:
        """Return the threads with the fewest calls, with the most, and those that waited longest."""
        threads = self._threads
        chosen = {
            "fewest calls": threads[0],
            "median": threads[len(threads) // 2],
            "most calls": threads[-1],
            "highest p99": max(threads, key=lambda waits: waits.p99_ms),
            "longest wait": max(threads, key=lambda waits: waits.max_ms),
        }
        rows = [
            (
                which,
                f"{waits.calls:,}",
                f"{waits.median_ms:.2f}",
                f"{waits.p99_ms:.2f}",
                f"{waits.max_ms:.2f}",
            )
            for which, waits in chosen.items()
        ]
        title = f"Fairness: {_CALL}, {CROWD}, {self._seconds:.0f} seconds"
        return [Table(title, ("the thread with", "calls", "median ms", "p99 ms", "longest ms"), rows)]


def _measure(ground: Ground) -> Fairness:
    ended = threading.Event()
    start = threading.Barrier(CROWD.threads + 1)

    def work(lane: Lane) -> array[int]:
        waits = array("q")
        get = lane.side.get
        start.wait()
        while not ended.is_set():
            (record_id,) = lane.arguments(_CALL)
            asked = time.perf_counter_ns()
            get(record_id)
            waits.append(time.perf_counter_ns() - asked)
        return waits

    with (
        open_ours(
            ground.dsn,
            ground.schemas[OURS],
            CROWD.threads,
            connections=CROWD.connections,
            durable=ground.options.durable,
        ) as sides,
        team_of(CROWD.threads) as team,
        ThreadPoolExecutor(CROWD.threads) as executor,
    ):
        ground.progress(f"making records, {CROWD}", 0, 0)
        lanes = team.lanes(sides, "fairness")
        try:
            futures = [executor.submit(work, lane) for lane in lanes]
            gc.collect()
            start.wait()
            started = time.monotonic()
            for tenths in range(10 * ground.options.seconds):
                ground.progress(f"fairness, {CROWD}", tenths, 10 * ground.options.seconds)
                time.sleep(max(0.0, started + (tenths + 1) * _PROGRESS_SECONDS - time.monotonic()))
        finally:
            ended.set()
            start.abort()
        seconds = time.monotonic() - started
        return Fairness([Waits.of(future.result()) for future in futures], seconds)


PART: Final = Part("fairness", f"how evenly {CROWD} are served", _measure, usual=True)
