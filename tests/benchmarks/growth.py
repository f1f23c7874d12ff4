"""Whether tables stay as small and as fast as they were: HOT writes, sizes, and what a call takes among many rows."""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing
from dataclasses import dataclass
from threading import Event
from typing import Any, Final, TypeAlias

import psycopg

from nl2state import Fence
from nl2state.pages import Page
from nl2state_postgres import PostgresTenant
from nl2state_postgres.demo.run import Progress
from tests.benchmarks.filling import FREE_LEASES, LIVE_STATES, OWNER, empty, fill, settle
from tests.benchmarks.ours import open_tenant
from tests.benchmarks.parts import BenchmarkError, Ground, Part
from tests.benchmarks.report import Report, Table
from tests.benchmarks.rounds import Ratio
from tests.benchmarks.sides import BY_HAND, OURS

__all__ = ["PART", "Churn", "Growth", "Scale", "measure", "verdict"]

HOT_SHARE_MIN: Final = 0.99
SIZE_RATIO_MAX: Final = 1.05
TIME_RATIO_MAX: Final = 1.25

_ROUNDS = 51
_RECORDS = 10_000
_THREADS = 4
_STRIDE = 7_919  # a prime, so that every row has its turn, and none next to the one before; a thread keeps to its own
_TTL_SECONDS = 86_400.0
_VALUE: Final[dict[str, Any]] = {"order": "order-2024-000017", "paid": True, "lines": ["x" * 100] * 4}  # some 470 bytes
_SMALL_VALUE: Final[dict[str, Any]] = {"order": "order-2024-000017", "paid": True, "lines": ["x" * 160]}
_OUTCOME: Final[dict[str, Any]] = {"charge": "ch_1", "receipt": "x" * 160}
_COUNTS_SECONDS = 10.0
_PROGRESS_SECONDS = 0.2
_PAGE = 1_000
_ROUNDS_TO_WARM_UP = 2
_CALLS = ("get", "update", "acquire")

Work: TypeAlias = Callable[[PostgresTenant, int], object]
"""What is done on a turn."""


@dataclass(frozen=True, slots=True)
class Churn:
    """What so many writes did to a table: how many were HOT, and its bytes before and after."""

    what: str
    writes: int
    hot: int
    table_bytes: tuple[int, int]
    index_bytes: tuple[int, int]
    grows: bool = False
    """Whether rows were added as well, so that the sizes say nothing."""

    @property
    def hot_share(self) -> float:
        return self.hot / self.writes

    @property
    def table_ratio(self) -> float:
        return self.table_bytes[1] / self.table_bytes[0]

    @property
    def index_ratio(self) -> float:
        return self.index_bytes[1] / self.index_bytes[0]

    @property
    def held(self) -> bool:
        kept = max(self.table_ratio, self.index_ratio) <= SIZE_RATIO_MAX or self.grows
        return self.hot_share >= HOT_SHARE_MIN and kept


@dataclass(frozen=True, slots=True)
class Scale:
    """What a call took among few rows and among many: of each round, microseconds."""

    call: str
    few_us: tuple[float, ...]
    many_us: tuple[float, ...]

    @property
    def ratio(self) -> Ratio:
        """How many times as long it took among many, of each round."""
        return Ratio.of([many / few for few, many in zip(self.few_us, self.many_us, strict=True)])

    @property
    def held(self) -> bool:
        return self.ratio.median <= TIME_RATIO_MAX


def measure(
    dsn: str, schemas: Sequence[str], *, rows: int, writes: int, rounds: int, calls: int, progress: Progress
) -> Growth:
    """Measure both, in two schemas: so many writes to a table of 10,000 rows; calls among these, and among `rows`.

    Raises BenchmarkError where there are fewer rows than threads, or where the server does not count what is written.
    """
    few, many = schemas
    records = min(_RECORDS, rows) // _THREADS * _THREADS
    if not records:
        raise BenchmarkError(f"--growth needs {_THREADS} rows at least: each thread has rows of its own")
    with closing(psycopg.connect(dsn, autocommit=True)) as connection:
        empty(connection, few)  # of what was measured before
        churned = list(_churn(_Writing(dsn, few, connection, progress), records, writes))
        for schema, count in ((few, records), (many, rows)):
            empty(connection, schema)
            for kind in (LIVE_STATES, FREE_LEASES):
                fill(connection, schema, kind, count, lambda n, of: progress("filling", n, of))
            progress("vacuuming", 0, 0)
            settle(connection, schema)
    return Growth(churned, list(_scale(dsn, ((few, records), (many, rows)), rounds, calls, progress)), records, rows)


def _churn(writing: _Writing, records: int, writes: int) -> Iterator[Churn]:
    """Fill the tables by the library's own calls, and write to them, each thread to rows of its own.

    What a table is compared with is itself as it was filled, vacuumed once: the maps that a vacuum adds count as well.
    """
    fences: dict[int, Fence] = {}
    revisions = [1] * records

    def acquire(tenant: PostgresTenant, number: int) -> None:
        fences[number] = tenant.leases.acquire(f"order-{number:06}", owner=OWNER, ttl_seconds=_TTL_SECONDS).fence

    def update(tenant: PostgresTenant, turn: int) -> None:
        number = turn * _STRIDE % records
        tenant.states.update(f"order-{number:06}", _VALUE, expected_revision=revisions[number])
        revisions[number] += 1

    def complete(tenant: PostgresTenant, number: int) -> None:
        reservation = tenant.idempotency.reserve(
            f"pay-{number:06}", request=1, result_ttl_seconds=_TTL_SECONDS, attempt_ttl_seconds=_TTL_SECONDS
        )
        tenant.idempotency.complete(reservation.attempt, _OUTCOME)

    writing.do("making records", records, lambda tenant, n: tenant.states.create(f"order-{n:06}", _VALUE))
    writing.do("making leases", records, acquire)
    writing.settle()
    yield writing.count("updates", "states", writes, update)
    yield writing.count(
        "renewals", "leases", writes, lambda tenant, n: tenant.leases.renew(fences[n * _STRIDE % records])
    )
    beats = max(1, writes // 2)
    yield writing.count("renewals of one", "leases", beats, lambda tenant, _: tenant.leases.renew(fences[0]), threads=1)
    yield writing.count("completions", "keys", records, complete, grows=True)


class _Writing:
    """Writes by several threads, and what the server counts of them."""

    def __init__(self, dsn: str, schema: str, connection: psycopg.Connection[Any], progress: Progress) -> None:
        self._dsn = dsn
        self._schema = schema
        self._connection = connection
        self._progress = progress

    def do(self, what: str, count: int, work: Work, *, threads: int = _THREADS) -> None:
        """Do this work so many times, each thread on turns of its own; their connections are closed in the end."""
        stopped = Event()
        done = [0] * threads

        def turns(tenant: PostgresTenant, thread: int) -> None:
            for turn in range(thread, count, threads):
                if stopped.is_set():
                    return
                work(tenant, turn)
                done[thread] += 1

        with open_tenant(self._dsn, self._schema, threads) as tenant, ThreadPoolExecutor(threads) as executor:
            try:
                running = {executor.submit(turns, tenant, thread) for thread in range(threads)}
                while running:
                    finished, running = wait(running, timeout=_PROGRESS_SECONDS, return_when=FIRST_EXCEPTION)
                    self._progress(what, sum(done), count)
                    for future in finished:
                        future.result()
            finally:
                stopped.set()

    def count(
        self, what: str, table: str, count: int, work: Work, *, threads: int = _THREADS, grows: bool = False
    ) -> Churn:
        """Do this work, and return what it did to the table. `grows` says that it adds rows as well."""
        sizes, updates = self._sizes(table), self._updates(table)
        self.do(what, count, work, threads=threads)
        deadline = time.monotonic() + _COUNTS_SECONDS
        while (seen := self._updates(table))[0] - updates[0] < count and time.monotonic() < deadline:
            time.sleep(0.05)  # a session hands in its counts when it ends, and that is after its client's end
        if seen[0] - updates[0] < count:
            raise BenchmarkError(f"the server did not count all {what}: is track_counts on?")
        table_bytes, index_bytes = zip(sizes, self._sizes(table), strict=True)
        return Churn(what, seen[0] - updates[0], seen[1] - updates[1], table_bytes, index_bytes, grows)

    def settle(self) -> None:
        """Vacuum."""
        settle(self._connection, self._schema)

    def _sizes(self, table: str) -> tuple[int, int]:
        return self._of_table("SELECT pg_table_size(relid), pg_indexes_size(relid) FROM pg_stat_user_tables", table)

    def _updates(self, table: str) -> tuple[int, int]:
        return self._of_table("SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables", table)

    def _of_table(self, sql: str, table: str) -> tuple[int, int]:
        where = f"{sql} WHERE schemaname = %s AND relname = %s"
        first, second = self._connection.execute(where.encode(), [self._schema, table]).fetchone() or (0, 0)
        return int(first), int(second)


def _scale(dsn: str, sizes: Sequence[tuple[str, int]], rounds: int, calls: int, progress: Progress) -> Iterator[Scale]:
    """Make each call on rows that are drawn anew for each round, among few rows and among many by turns."""
    with ExitStack() as stores:
        sides = [_Side(stores.enter_context(open_tenant(dsn, schema, 1)), count) for schema, count in sizes]
        for side in sides:
            side.warm_up(lambda n, of: progress("warming up", n, of))
        for call in _CALLS:
            measured: list[list[float]] = [[], []]
            for number in range(-_ROUNDS_TO_WARM_UP, rounds):
                progress(f"{call} among many", max(0, number), rounds)
                turns = list(zip(sides, measured, strict=True))
                for side, times in turns if number % 2 == 0 else turns[::-1]:
                    microseconds = side.round(call, min(calls, sizes[0][1]))
                    if number >= 0:
                        times.append(microseconds)
            yield Scale(call, tuple(measured[0]), tuple(measured[1]))


class _Side:
    """So many records and leases, and the calls on them."""

    def __init__(self, tenant: PostgresTenant, rows: int) -> None:
        self._tenant = tenant
        self._rows = rows
        self._revisions: dict[str, int] = {}

    def warm_up(self, progress: Callable[[int, int], None]) -> None:
        """Read every row once."""
        lists: tuple[Callable[[str | None], Page[Any]], ...] = (
            lambda after: self._tenant.states.list_ids(after=after, limit=_PAGE),
            lambda after: self._tenant.leases.list(after=after, limit=_PAGE),
        )
        for listed in lists:
            after = listed(None).after
            read = _PAGE
            while after is not None:
                progress(read, self._rows)
                after = listed(after).after
                read += _PAGE

    def round(self, call: str, calls: int) -> float:
        """Make so many calls, and return the microseconds that one took."""
        names = [LIVE_STATES.name(number) for number in random.sample(range(1, self._rows + 1), calls)]
        revisions = [self._revisions.get(name, 1) for name in names]
        states, leases = self._tenant.states, self._tenant.leases
        fences: list[Fence] = []
        gc.collect()
        started = time.perf_counter_ns()
        if call == "get":
            for name in names:
                states.get(name)
        elif call == "update":
            for name, revision in zip(names, revisions, strict=True):
                states.update(name, _SMALL_VALUE, expected_revision=revision)
        else:
            fences += [leases.acquire(name, owner=OWNER, ttl_seconds=_TTL_SECONDS).fence for name in names]
        took = (time.perf_counter_ns() - started) / 1_000 / calls
        if call == "update":
            self._revisions.update((name, revision + 1) for name, revision in zip(names, revisions, strict=True))
        for fence in fences:
            leases.release(fence)
        return took


class Growth(Report):
    """What was measured."""

    def __init__(self, churned: Sequence[Churn], scales: Sequence[Scale], few: int, many: int) -> None:
        self._churned, self._scales, self._few, self._many = churned, scales, few, many
        held = [*(churn.held for churn in churned), *(scale.held for scale in scales)]
        self.exit_status = 0 if all(held) else 1

    def figures(self) -> dict[str, Any]:
        """Return the shares and sizes by kind of write, and the times by call."""
        churned = [
            {
                "what": churn.what,
                "writes": churn.writes,
                "hot_share": round(churn.hot_share, 5),
                "table_bytes": churn.table_bytes,
                "index_bytes": churn.index_bytes,
                "held": churn.held,
            }
            for churn in self._churned
        ]
        scales = [
            {
                "call": scale.call,
                "few_us": round(statistics.median(scale.few_us), 1),
                "many_us": round(statistics.median(scale.many_us), 1),
                "ratio": scale.ratio.figures(),
                "held": scale.held,
            }
            for scale in self._scales
        ]
        return {"growth": {"rows": [self._few, self._many], "churn": churned, "scale": scales}}

    def tables(self) -> list[Table]:
        """Return a table of each."""
        churned = [
            [
                churn.what,
                f"{churn.writes:,}",
                f"{churn.hot_share:.4f}",
                *("" if churn.grows else f"{ratio:.3f}" for ratio in (churn.table_ratio, churn.index_ratio)),
                verdict(churn.held),
            ]
            for churn in self._churned
        ]
        scales = [
            [
                scale.call,
                *(f"{statistics.median(times):,.1f}" for times in (scale.few_us, scale.many_us)),
                *scale.ratio.words(),
                verdict(scale.held),
            ]
            for scale in self._scales
        ]
        return [
            Table(
                "What writes do to a table: sizes after, in those before",
                (f"in {self._few:,} rows", "count", "HOT", "table", "indexes", "bounds"),
                churned,
                f"Bounds: HOT at least {HOT_SHARE_MIN}, sizes at most {SIZE_RATIO_MAX}.",
            ),
            Table(
                "What a call takes, the rows warmed",
                ("call", f"among {self._few:,} us", f"among {self._many:,} us", "ratio", "quartiles", "bound"),
                scales,
                f"Bound: at most {TIME_RATIO_MAX} times.",
            ),
        ]


def verdict(held: bool) -> str:
    """Return whether a bound was kept, for people."""
    return "held" if held else "NOT HELD"


def _measured(ground: Ground) -> Growth:
    options = ground.options
    return measure(
        ground.dsn,
        (ground.schemas[OURS], ground.schemas[BY_HAND]),
        rows=options.rows,
        writes=options.writes,
        rounds=options.rounds or _ROUNDS,
        calls=options.calls,
        progress=ground.progress,
    )


PART: Final = Part("growth", "whether tables stay small and fast", _measured, durable=True)
