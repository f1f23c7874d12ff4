"""A call for a hundred items beside a hundred calls for one, where commits wait for the disk."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any, Final

from nl2state import Attempt, Completion, Fence, KeyRequest, NewState, StateUpdate
from nl2state_postgres import PostgresTenant
from tests.benchmarks.crowds import Crowd
from tests.benchmarks.ours import open_tenant
from tests.benchmarks.parts import BenchmarkError, Ground, Part
from tests.benchmarks.report import Report, Table
from tests.benchmarks.rounds import Result, TeamOnLanes, compare, team_of
from tests.benchmarks.sides import OURS, OWNER, TTL_SECONDS, VALUE

__all__ = [
    "ATOMIC",
    "AT_ONCE",
    "CALLS_FOR_MANY",
    "ITEMS",
    "PART",
    "SINGLY",
    "AtOnce",
    "Batch",
    "ManyLane",
    "Singly",
]

ITEMS: Final = 100

SINGLY: Final = "singly"
AT_ONCE: Final = "at_once"
ATOMIC: Final = "atomic"

CALLS_FOR_MANY: Final = ("create", "update", "get", "reserve", "complete", "renew")
"""By what they are called for one."""

_READS = ("get",)  # it is of one moment, and there is nothing to be atomic
_CROWD = Crowd(1, 1)
_ROUNDS = 11


class Singly:
    """A way: by a call for each item. One that is refused anything raises."""

    def __init__(self, tenant: PostgresTenant) -> None:
        self._states = tenant.states
        self._leases = tenant.leases
        self._keys = tenant.idempotency

    def create(self, names: Sequence[str]) -> object:
        return [self._states.create(name, VALUE) for name in names]

    def update(self, names: Sequence[str], revision: int) -> object:
        return [self._states.update(name, VALUE, expected_revision=revision) for name in names]

    def get(self, names: Sequence[str]) -> object:
        return [self._states.require(name) for name in names]

    def reserve(self, names: Sequence[str]) -> list[Attempt]:
        reservations = [
            self._keys.reserve(name, request=VALUE, result_ttl_seconds=TTL_SECONDS, attempt_ttl_seconds=TTL_SECONDS)
            for name in names
        ]
        return [reservation.attempt for reservation in reservations]

    def complete(self, attempts: Sequence[Attempt]) -> object:
        for attempt in attempts:
            self._keys.complete(attempt, VALUE)
        return None

    def renew(self, fences: Sequence[Fence]) -> object:
        return [self._leases.renew(fence) for fence in fences]

    def acquire(self, names: Sequence[str]) -> list[Fence]:
        return [self._leases.acquire(name, owner=OWNER, ttl_seconds=TTL_SECONDS).fence for name in names]


class AtOnce(Singly):
    """By one call for all items: all of them or none, or each by itself."""

    def __init__(self, tenant: PostgresTenant, *, atomic: bool) -> None:
        super().__init__(tenant)
        self._atomic = atomic

    def create(self, names: Sequence[str]) -> object:
        return [*self._states.create_many([NewState(name, VALUE) for name in names], atomic=self._atomic)]

    def update(self, names: Sequence[str], revision: int) -> object:
        items = [StateUpdate(name, VALUE, expected_revision=revision) for name in names]
        return [*self._states.update_many(items, atomic=self._atomic)]

    def get(self, names: Sequence[str]) -> object:
        found = self._states.get_many(names)
        if None in found:
            raise LookupError("a record is not there")
        return found

    def reserve(self, names: Sequence[str]) -> list[Attempt]:
        items = [KeyRequest(name, VALUE) for name in names]
        reservations = self._keys.reserve_many(
            items, result_ttl_seconds=TTL_SECONDS, attempt_ttl_seconds=TTL_SECONDS, atomic=self._atomic
        )
        return [reservation.attempt for reservation in reservations]

    def complete(self, attempts: Sequence[Attempt]) -> object:
        items = [Completion(attempt, VALUE) for attempt in attempts]
        return [*self._keys.complete_many(items, atomic=self._atomic)]

    def renew(self, fences: Sequence[Fence]) -> object:
        return [*self._leases.renew_many(fences, atomic=self._atomic)]


class ManyLane:
    """What one way works on: a hundred records and leases of its own, and new names whenever it needs them."""

    def __init__(self, side: Singly, name: str) -> None:
        self.side = side
        self._name = name
        self._numbers = count()
        self._records = self._fresh()
        self._revision = 1
        side.create(self._records)
        self._fences = side.acquire(self._records)

    def arguments(self, call: str) -> tuple[Any, ...]:
        """Return the arguments of the next such call, which are made in their order. What it is to find is made now."""
        if call == "update":
            self._revision += 1
            return self._records, self._revision - 1
        if call == "get":
            return (self._records,)
        if call == "renew":
            return (self._fences,)
        return (self.side.reserve(self._fresh()),) if call == "complete" else (self._fresh(),)

    def _fresh(self) -> list[str]:
        return [f"batch-{self._name}-{next(self._numbers):08}" for _ in range(ITEMS)]


class Batch(Report):
    """What a hundred of each call took, of each way."""

    def __init__(self, results: Sequence[Result]) -> None:
        self._results = results

    def figures(self) -> dict[str, Any]:
        """Return microseconds of a hundred items, and how many times the rate of single calls one call for all has."""
        return {
            "batch": [
                {
                    "call": f"{result.call}_many",
                    "items": ITEMS,
                    "us": {name: round(result.median_us(name), 1) for name in result.us},
                    "ratios": {name: result.ratio(SINGLY, name).figures() for name in result.us if name != SINGLY},
                }
                for result in self._results
            ]
        }

    def tables(self) -> list[Table]:
        """Return a table with a row for each call, atomic or not."""
        rows = [
            [
                f"{result.call}_many{', atomic' if name == ATOMIC else ''}",
                f"{result.median_us(SINGLY) / 1_000:,.1f}",
                f"{result.median_us(name) / 1_000:,.1f}",
                f"{ITEMS * 1e6 / result.median_us(name):,.0f}",
                *result.ratio(SINGLY, name).words(),
            ]
            for result in self._results
            for name in result.us
            if name != SINGLY
        ]
        headings = ["call", f"{ITEMS} calls ms", "one call ms", "its items /s", "times the rate", "quartiles"]
        note = "Above 1, one call is faster. synchronous_commit is on here; fsync is the server's."
        return [Table(f"{ITEMS} items in one call, {_CROWD}", headings, rows, note)]


def _measure(ground: Ground) -> Batch:
    options = ground.options
    calls = [call for call in CALLS_FOR_MANY if options.only is None or call in options.only]
    if not calls:
        raise BenchmarkError(f"none of these has a call for many: {', '.join(options.only or ())}")
    rounds = options.rounds or _ROUNDS
    results = []
    with (
        open_tenant(ground.dsn, ground.schemas[OURS], _CROWD.connections, durable=True) as tenant,
        team_of(_CROWD.threads) as team,
    ):
        ground.progress("making records", 0, 0)
        sides = {
            SINGLY: Singly(tenant),
            AT_ONCE: AtOnce(tenant, atomic=False),
            ATOMIC: AtOnce(tenant, atomic=True),
        }
        ways = [TeamOnLanes(name, team, team.made(ManyLane, [side], name)) for name, side in sides.items()]
        for call in calls:
            compared = [way for way in ways if call not in _READS or way.name != ATOMIC]
            for result in compare(compared, call, _CROWD, rounds=rounds, calls=options.calls // ITEMS):
                ground.progress(f"{call}_many", len(result.us[SINGLY]), rounds)
            results.append(result)
    return Batch(results)


PART: Final = Part("batch", f"a call for {ITEMS} items beside {ITEMS} calls", _measure, durable=True)
