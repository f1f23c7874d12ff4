"""What retention costs: each of its batches, and a writer beside it, in a process of its own."""

from __future__ import annotations

import random
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, Final, TypeAlias

import psycopg

from nl2state import Attempt, Fence, RetainCursor, TenantScope
from nl2state_postgres import PostgresStore, PostgresTenant
from nl2state_postgres.demo.run import Progress
from tests.benchmarks.filling import DUE, LIVE_KEYS, LIVE_LEASES, LIVE_STATES, OWNER, Rows, empty, fill, settle
from tests.benchmarks.growth import verdict
from tests.benchmarks.parts import BenchmarkError, Ground, Part
from tests.benchmarks.report import Report, Table
from tests.benchmarks.rounds import Ratio
from tests.benchmarks.sides import OURS

__all__ = ["PART", "Removal", "Retention", "measure", "percentile", "work"]

BATCH_MS_MAX: Final = 60.0
GROWTH_RATIO_MAX: Final = 1.25
"""How much longer the last batches may take than the first."""
P99_RATIO_MAX: Final = 2.0

_ROUNDS = 5
_BATCH = 1_000
_LIVE = 10_000
_WINDOW_SECONDS = 3.0
_WARM_UP_SECONDS = 0.5
_END_BATCHES = 100
"""How many batches are kept for the end, with nobody beside them, and compared with as many at the beginning."""
Write: TypeAlias = Callable[[float], Callable[[], float]]
"""Lets the writer write for so many seconds, and returns what waits for its p99 in microseconds."""

_LIVES: Final[Mapping[str, Rows]] = {"states": LIVE_STATES, "leases": LIVE_LEASES, "keys": LIVE_KEYS}
_VALUE: Final[dict[str, Any]] = {"order": "order-2024-000017", "paid": True, "lines": ["x" * 160]}


@dataclass(slots=True)
class Removal:
    """The removal of one kind of rows: what batches took, in ms, and the p99 of a writer alone and beside it, in us."""

    kind: str
    rows: int
    removed: int = 0
    first_ms: list[float] = field(default_factory=list)
    beside_ms: list[float] = field(default_factory=list)
    last_ms: list[float] = field(default_factory=list)
    p99_us: list[tuple[float, float]] = field(default_factory=list)

    @property
    def batches_ms(self) -> list[float]:
        """Of all batches."""
        return [*self.first_ms, *self.beside_ms, *self.last_ms]

    @property
    def nears_its_end(self) -> bool:
        """Whether only the batches are left that are kept for the end."""
        return self.removed + _END_BATCHES * _BATCH >= self.rows

    @property
    def growth(self) -> float:
        """How much longer the last batches took than the first."""
        ends = self.first_ms[:_END_BATCHES], self.last_ms[-_END_BATCHES:]
        return statistics.median(ends[1]) / statistics.median(ends[0]) if all(ends) else 1.0

    @property
    def p99_ratio(self) -> float:
        """The median beside it, in the median alone."""
        return self._beside / self._alone if self.p99_us else 1.0

    @property
    def _alone(self) -> float:
        return statistics.median(alone for alone, _ in self.p99_us)

    @property
    def _beside(self) -> float:
        return statistics.median(beside for _, beside in self.p99_us)

    @property
    def batches_held(self) -> bool:
        """Whether those of the batches were kept."""
        return max(self.batches_ms) <= BATCH_MS_MAX and self.growth <= GROWTH_RATIO_MAX

    @property
    def writer_held(self) -> bool:
        """Whether that of the writer was kept."""
        return self.p99_ratio <= P99_RATIO_MAX

    @property
    def held(self) -> bool:
        """Whether the bounds were kept."""
        return self.batches_held and self.writer_held

    def row(self) -> list[str]:
        """Return its batches for people."""
        batches = self.batches_ms
        times = statistics.median(batches), percentile(batches, 99), max(batches)
        above = sum(batch > BATCH_MS_MAX for batch in batches)
        numbers = [f"{len(batches):,}", *(f"{time:.1f}" for time in times), f"{above:,}", f"{self.growth:.2f}"]
        return [self.kind, *numbers, verdict(self.batches_held)]

    def row_of_writer(self) -> list[str]:
        """Return the writer for people, where a round was whole."""
        quartiles = Ratio.of([beside / alone for alone, beside in self.p99_us]).words()[1]
        numbers = f"{self._alone:,.0f}", f"{self._beside:,.0f}", f"{self.p99_ratio:.2f}"
        return [self.kind, *numbers, quartiles, verdict(self.writer_held)]

    def figures(self) -> dict[str, Any]:
        """Return it for a program."""
        batches = self.batches_ms
        ratios = [beside / alone for alone, beside in self.p99_us]
        return {
            "kind": self.kind,
            "removed": self.removed,
            "batches": len(batches),
            "batch_ms": round(statistics.median(batches), 2),
            "batch_p99_ms": round(percentile(batches, 99), 2),
            "batch_max_ms": round(max(batches), 2),
            "batches_above": sum(batch > BATCH_MS_MAX for batch in batches),
            "growth": round(self.growth, 3),
            "writer_alone_p99_us": round(self._alone, 1) if ratios else None,
            "writer_beside_p99_us": round(self._beside, 1) if ratios else None,
            "p99_ratio": round(self.p99_ratio, 3),
            "p99_ratio_quartiles": Ratio.of(ratios).figures()["quartiles"] if ratios else None,
            "held": self.held,
        }


def measure(dsn: str, schema: str, rows: int, rounds: int, progress: Progress) -> Retention:
    """Remove so many rows of each kind, one kind after the other, among 10,000 that stay and that a writer writes to.

    For as many rounds, the writer is alone for a while and then has the removal beside it. Raises BenchmarkError where
    the writer fails.
    """
    removals = []
    with closing(psycopg.connect(dsn, autocommit=True)) as connection, PostgresStore.open(dsn, schema=schema) as store:
        for kind, due in DUE.items():
            empty(connection, schema)
            fill(connection, schema, _LIVES[due.table], min(_LIVE, rows), lambda n, of: progress("filling", n, of))
            fill(connection, schema, due, rows, lambda n, of: progress("filling", n, of))
            progress("vacuuming", 0, 0)
            settle(connection, schema)
            with _writer(dsn, schema, due.table, min(_LIVE, rows)) as write:
                removals.append(Removal(kind, rows))
                _remove(store, removals[-1], rounds, write, progress)
    return Retention(removals)


def _remove(store: PostgresStore, removal: Removal, rounds: int, write: Write, progress: Progress) -> None:
    batches = _batches(store, removal, progress)
    for took in batches:
        removal.first_ms.append(took)
        if len(removal.first_ms) == _END_BATCHES:
            break
    for _ in range(rounds):
        if removal.nears_its_end:
            break
        alone = write(_WINDOW_SECONDS)()
        beside, ends_at = write(_WINDOW_SECONDS), time.monotonic() + _WINDOW_SECONDS
        while time.monotonic() < ends_at and not removal.nears_its_end:
            removal.beside_ms.append(next(batches))
        whole = time.monotonic() >= ends_at
        p99_us = beside()
        if whole:
            removal.p99_us.append((alone, p99_us))
    removal.last_ms.extend(batches)


def _batches(store: PostgresStore, removal: Removal, progress: Progress) -> Iterator[float]:
    """Retain to the end, and yield what each call took that removed something."""
    after: RetainCursor | None = None
    while True:
        started = time.perf_counter()
        page = store.system.retain(terminal_age_seconds=86_400, after=after, limit=_BATCH)
        took = (time.perf_counter() - started) * 1_000
        removal.removed += page.states + page.leases + page.idempotency
        progress(f"removing {removal.kind}", removal.removed, removal.rows)
        yield took
        after = page.after
        if after is None:
            return


@contextmanager
def _writer(dsn: str, schema: str, table: str, rows: int) -> Iterator[Write]:
    """Start a process that writes, and yield what lets it. It is killed when the block ends."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=work, args=(dsn, schema, table, rows, theirs), daemon=True)
    process.start()
    theirs.close()

    def p99_us() -> float:
        try:
            return float(ours.recv())
        except (EOFError, OSError):
            raise BenchmarkError("the writer's process failed") from None

    def write(seconds: float) -> Callable[[], float]:
        ours.send(seconds)
        return p99_us

    try:
        write(_WARM_UP_SECONDS)()
        yield write
    finally:
        process.kill()
        process.join()
        ours.close()


def work(dsn: str, schema: str, table: str, rows: int, pipe: Connection) -> None:
    """Write to rows of this table for as long as is asked, again and again, and answer with the p99 in microseconds."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is the parent's, which ends this process
    with PostgresStore.open(dsn, schema=schema, migrate=False) as store:
        writing = _WRITES[table](store.tenant(TenantScope.local()))
        while True:
            seconds = pipe.recv()
            times = []
            ended = time.perf_counter()
            ends_at = ended + seconds
            while ended < ends_at:
                number = random.randint(1, rows)
                started = time.perf_counter()
                writing(number)
                ended = time.perf_counter()
                times.append(ended - started)
            pipe.send(percentile(times, 99) * 1e6)


def _updates(tenant: PostgresTenant) -> Callable[[int], object]:
    revisions: dict[int, int] = {}

    def update(number: int) -> None:
        revision = revisions.get(number, 1)
        tenant.states.update(LIVE_STATES.name(number), _VALUE, expected_revision=revision)
        revisions[number] = revision + 1

    return update


def _renewals(tenant: PostgresTenant) -> Callable[[int], object]:
    return lambda number: tenant.leases.renew(Fence(LIVE_LEASES.name(number), OWNER, 1))


def _renewals_of_attempts(tenant: PostgresTenant) -> Callable[[int], object]:
    return lambda number: tenant.idempotency.renew(Attempt(LIVE_KEYS.name(number), 1))


_WRITES: Final = {"states": _updates, "leases": _renewals, "keys": _renewals_of_attempts}


def percentile(values: Sequence[float], percent: int) -> float:
    """Return the least value that so many percent of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


class Retention(Report):
    """What was measured."""

    def __init__(self, removals: Sequence[Removal]) -> None:
        self._removals = removals
        self.exit_status = 0 if all(removal.held for removal in removals) else 1

    def figures(self) -> dict[str, Any]:
        """Return the times of batches and the writer's p99, by kind."""
        return {"retention": [removal.figures() for removal in self._removals]}

    def tables(self) -> list[Table]:
        """Return a table of the batches, and one of the writer."""
        writers = [removal.row_of_writer() for removal in self._removals if removal.p99_us]
        return [
            Table(
                f"Retention: batches of {_BATCH:,}",
                ("removed", "batches", "ms", "p99", "max", f"> {BATCH_MS_MAX:.0f}", "last/first", "bounds"),
                [removal.row() for removal in self._removals],
                f"Bounds: a batch at most {BATCH_MS_MAX:.0f} ms, the last ones {GROWTH_RATIO_MAX} times the first.",
            ),
            Table(
                "Retention: p99 of a writer to rows of the same table",
                ("beside", "alone us", "beside us", "ratio", "quartiles", "bound"),
                writers,
                f"Bound: {P99_RATIO_MAX} times its own." if writers else "There were too few rows for a round.",
            ),
        ]


def _measured(ground: Ground) -> Retention:
    options = ground.options
    return measure(ground.dsn, ground.schemas[OURS], options.rows, options.rounds or _ROUNDS, ground.progress)


PART: Final = Part("retention", "what retention takes, and costs a writer beside it", _measured, durable=True)
