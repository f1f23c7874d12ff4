"""Recorded histories: many threads at random calls, and a judgement afterwards."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from nl2state.errors import (
    AttemptInFlightError,
    FencingRejectedError,
    RevisionConflictError,
    StoreTimeoutError,
    StoreUnavailableError,
)
from nl2state.leases import Fence
from nl2state.store import Tenant
from nl2state.testing.harness import Harness, together

__all__ = ["Event", "TestHistories", "violations"]

_SECONDS = 2.0
_THREADS = 6
_RESOURCES = 3
_TTL_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Event:
    """A call that succeeded: what it did, with which token (or attempt), and between which moments it took effect."""

    kind: Literal["grant", "write", "end", "attempt", "complete"]
    name: str
    token: int
    began: float
    ended: float


def violations(events: Iterable[Event]) -> list[str]:
    """Return what a history of leases (grant, write, end) or keys (attempt, complete) breaks of P5, P6 and P7."""
    found: list[str] = []
    names: dict[str, list[Event]] = {}
    for event in events:
        names.setdefault(event.name, []).append(event)
    for name, own in names.items():
        grants = sorted((e for e in own if e.kind in ("grant", "attempt")), key=lambda e: e.ended)
        tokens = Counter(e.token for e in grants)
        found += [f"{name}: token {token} was granted twice" for token, count in tokens.items() if count > 1]
        for event in own:
            earlier = [g for g in grants if g.ended < event.began]
            newest = max((g.token for g in earlier), default=-1)
            if event.kind in ("grant", "attempt") and newest >= event.token:
                found.append(f"{name}: token {event.token} was granted after {newest}")
            if event.kind in ("write", "complete") and newest > event.token:
                found.append(f"{name}: {event.kind} with {event.token} after {newest} was granted")
            if event.kind == "write" and any(
                e.kind == "end" and e.token == event.token and e.ended < event.began for e in own
            ):
                found.append(f"{name}: write with {event.token} after its end had returned")
        completed = Counter(e.token for e in own if e.kind == "complete")
        found += [f"{name}: attempt {token} completed twice" for token, count in completed.items() if count > 1]
    return found


class TestHistories:
    """P2, P5, P6 and P7, under many threads, expiries, revocations and clean-up."""

    def test_leases_and_the_writes_that_they_guard(self, harness: Harness) -> None:
        for number in range(_RESOURCES):
            harness.tenant().states.create(f"s{number}", 0)
        events, writes = _run(harness, _work_with_leases)
        assert {"grant", "write", "end"} <= {event.kind for event in events}
        assert violations(events) == []
        for number in range(_RESOURCES):
            revision = harness.tenant().states.require(f"s{number}").revision
            assert sorted(writes[f"s{number}"]) == list(range(2, revision + 1))

    def test_keys_and_their_attempts(self, harness: Harness) -> None:
        events, _ = _run(harness, _work_with_keys)
        assert {"attempt", "complete"} == {event.kind for event in events}
        assert violations(events) == []

    def test_the_judgement_finds_what_is_wrong(self) -> None:
        def judge(*events: tuple[str, int, float, float]) -> list[str]:
            return violations(Event(kind, "r", *rest) for kind, *rest in events)  # type: ignore[arg-type]  # its kinds

        assert judge(("grant", 1, 0, 1), ("write", 1, 2, 3), ("end", 1, 4, 5), ("grant", 2, 6, 7)) == []
        assert judge(("grant", 1, 0, 1), ("grant", 2, 2, 3), ("write", 1, 2.5, 4)) == []  # while the grant was made
        assert judge(("grant", 1, 0, 1), ("grant", 1, 2, 3)) != []
        assert judge(("grant", 2, 0, 1), ("grant", 1, 2, 3)) != []
        assert judge(("grant", 1, 0, 1), ("grant", 2, 2, 3), ("write", 1, 4, 5)) != []
        assert judge(("grant", 1, 0, 1), ("end", 1, 2, 3), ("write", 1, 4, 5)) != []
        assert judge(("attempt", 1, 0, 1), ("attempt", 2, 2, 3), ("complete", 1, 4, 5)) != []
        assert judge(("attempt", 1, 0, 1), ("complete", 1, 2, 3), ("complete", 1, 4, 5)) != []


class _Recorder:
    """What one thread did."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311  # chance, no secret
        self.events: list[Event] = []
        self.revisions: list[tuple[str, int]] = []

    def note(
        self, kind: Literal["grant", "write", "end", "attempt", "complete"], name: str, token: int, began: float
    ) -> None:
        self.events.append(Event(kind, name, token, began, time.monotonic()))


def _run(
    harness: Harness, work: Callable[[Tenant, _Recorder, threading.Event], None]
) -> tuple[list[Event], dict[str, list[int]]]:
    """Run work on all threads while the clock jumps and rows are swept, and return what they noted."""
    recorders = [_Recorder(seed) for seed in range(_THREADS)]
    over = threading.Event()

    def disturb() -> None:
        until = time.monotonic() + _SECONDS
        while time.monotonic() < until:
            harness.advance(_TTL_SECONDS / 2)
            if recorders[0].random.random() < 0.1:
                harness.advance(90_000)
            harness.clients[0].system.retain()
        over.set()

    def run(number: int) -> None:
        if number == _THREADS:
            disturb()
        else:
            work(harness.tenant(client=number % 2), recorders[number], over)

    for outcome in together(_THREADS + 1, run):
        assert outcome is None, outcome
    writes: dict[str, list[int]] = {}
    for recorder in recorders:
        for record_id, revision in recorder.revisions:
            writes.setdefault(record_id, []).append(revision)
    return [event for recorder in recorders for event in recorder.events], writes


def _work_with_leases(tenant: Tenant, recorder: _Recorder, over: threading.Event) -> None:
    chance = recorder.random
    mine: dict[str, Fence] = {}
    while not over.is_set():
        resource = f"r{chance.randrange(_RESOURCES)}"
        fence = mine.get(resource)
        try:
            began = time.monotonic()
            if fence is None or chance.random() < 0.2:
                lease = tenant.leases.try_acquire(resource, owner="a", ttl_seconds=_TTL_SECONDS)
                if lease is not None:
                    recorder.note("grant", resource, lease.fence.token, began)
                    mine[resource] = lease.fence
            elif chance.random() < 0.7:
                _write(tenant, recorder, resource, fence, release=chance.random() < 0.2)
            elif chance.random() < 0.4:
                tenant.leases.renew(fence)
            elif chance.random() < 0.5:
                tenant.leases.release(fence)
                recorder.note("end", resource, fence.token, began)
            else:
                tenant.leases.revoke(resource)
        except FencingRejectedError:
            if chance.random() < 0.7:
                mine.pop(resource, None)  # else it goes on trying with a dead token
        except (RevisionConflictError, StoreTimeoutError, StoreUnavailableError):
            pass


def _write(tenant: Tenant, recorder: _Recorder, resource: str, fence: Fence, *, release: bool) -> None:
    """Write the resource's record and another, alone or in a transaction with a savepoint that may be undone."""
    chance = recorder.random
    record_id = f"s{resource[1:]}"
    revision = tenant.states.require(record_id).revision
    if not release and chance.random() < 0.4:
        began = time.monotonic()
        tenant.states.update(record_id, None, expected_revision=revision, fence=fence)
        recorder.note("write", resource, fence.token, began)
        recorder.revisions.append((record_id, revision + 1))
        return
    with tenant.transaction(fence=fence) as tx:
        try:
            with tx.transaction():
                tx.states.update(record_id, None, expected_revision=revision)
                if chance.random() < 0.3:
                    raise LookupError
        except LookupError:
            tx.states.update(record_id, None, expected_revision=revision)
        if chance.random() < 0.3:
            time.sleep(0.002)
        if release:
            with tx.transaction():
                tx.leases.release(fence)
        began = time.monotonic()  # its commit begins now
    recorder.note("write", resource, fence.token, began)
    recorder.revisions.append((record_id, revision + 1))
    if release:
        recorder.note("end", resource, fence.token, began)


def _work_with_keys(tenant: Tenant, recorder: _Recorder, over: threading.Event) -> None:
    chance, keys = recorder.random, tenant.idempotency
    while not over.is_set():
        key = f"k{chance.randrange(20)}"
        try:
            began = time.monotonic()
            reservation = keys.reserve(
                key, request=None, result_ttl_seconds=_TTL_SECONDS, attempt_ttl_seconds=chance.choice([20, 60])
            )
            if reservation.completed:
                if chance.random() < 0.2:
                    keys.forget(key)
                continue
            attempt = reservation.attempt
            recorder.note("attempt", key, attempt.number, began)
            if chance.random() < 0.3:
                time.sleep(chance.random() * 0.02)
            if chance.random() < 0.1:
                keys.abandon(attempt)
                continue
            with tenant.transaction() as tx:
                tx.idempotency.complete(attempt, None)
                began = time.monotonic()
            recorder.note("complete", key, attempt.number, began)
        except (AttemptInFlightError, FencingRejectedError, StoreTimeoutError, StoreUnavailableError):
            pass
