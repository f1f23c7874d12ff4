"""The promise about what a fence adds to a call: one more reason to refuse it, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest

from nl2state.errors import FencingRejectedError
from nl2state.idempotency import Attempt, ReserveOptions
from nl2state.leases import Fence
from nl2state.lifecycle import Lifecycle
from nl2state.payload import Value
from nl2state.states import ANY_REVISION, NEVER, StateRecord
from nl2state.store import Tenant
from nl2state.testing.calls import CALLS, PublicCall, prepare, told
from nl2state.testing.harness import Harness

__all__ = ["Step", "TestGuardedWrites"]

_DAY = 86_400.0
_STRICT = Lifecycle(
    initial="created",
    statuses=frozenset({"created", "running", "waiting"}),
    transitions={"created": frozenset({"running"})},
)
_KEYS: ReserveOptions = {"request": 1, "result_ttl_seconds": 600, "attempt_ttl_seconds": 60}

Step: TypeAlias = Callable[[Tenant, Fence | None], object]
"""A call, guarded or not."""


def _at_any(record_id: str, value: Value) -> Step:
    return lambda t, f: t.states.update(record_id, value, expected_revision=ANY_REVISION, fence=f)


_LIVE: dict[str, Step] = {
    "create": lambda t, f: t.states.create(
        "r", 1, status="running", ttl_seconds=600, schema_version=3, request_id="q-1", parent_id="p", fence=f
    ),
    "create what is there": lambda t, f: t.states.create("r", 2, fence=f),
    "create what ended": lambda t, f: t.states.create("ended", 1, status="succeeded", fence=f),
    "create what expires": lambda t, f: t.states.create("e", 1, status="running", ttl_seconds=60, fence=f),
    "create what expires, too": lambda t, f: t.states.create("f", 1, status="running", ttl_seconds=60, fence=f),
    "update, and keep what is not given": lambda t, f: t.states.update("r", 2, expected_revision=1, fence=f),
    "update at another revision": lambda t, f: t.states.update("r", 3, expected_revision=7, fence=f),
    "update in another status": lambda t, f: t.states.update(
        "r", 3, expected_revision=2, expected_status="created", fence=f
    ),
    "update in its status": lambda t, f: t.states.update(
        "r", 3, expected_revision=2, expected_status="running", fence=f
    ),
    "update at any revision": _at_any("r", 4),
    "update against the lifecycle": lambda t, f: t.states.update(
        "r", 5, expected_revision=4, status="waiting", lifecycle=_STRICT, fence=f
    ),
    "update the expiry": lambda t, f: t.states.update(
        "r", 5, expected_revision=4, ttl_seconds=60, schema_version=4, request_id="q-2", fence=f
    ),
    "lift the expiry": lambda t, f: t.states.update("r", 6, expected_revision=5, ttl_seconds=NEVER, fence=f),
    "update what is absent": _at_any("nothing", 1),
    "put over what is there": lambda t, f: t.states.put("r", 7, fence=f),
    "put all that it has": lambda t, f: t.states.put(
        "r", 8, status="waiting", ttl_seconds=600, schema_version=5, request_id="q-3", parent_id="o", fence=f
    ),
    "put against the lifecycle": lambda t, f: t.states.put("r", 9, status="running", lifecycle=_STRICT, fence=f),
    "put what is new": lambda t, f: t.states.put("put", 1, ttl_seconds=600, fence=f),
    "delete at another revision": lambda t, f: t.states.delete("r", expected_revision=7, fence=f),
    "delete": lambda t, f: t.states.delete("r", expected_revision=8, fence=f),
    "delete what is absent": lambda t, f: t.states.delete("r", expected_revision=ANY_REVISION, fence=f),
    "create what was deleted": lambda t, f: t.states.create("r", 1, fence=f),
    "delete at any revision": lambda t, f: t.states.delete("r", expected_revision=ANY_REVISION, fence=f),
    "put what was deleted": lambda t, f: t.states.put("r", 2, fence=f),
    "end": lambda t, f: t.states.update("r", 3, expected_revision=12, status="succeeded", fence=f),
    "update what ended": _at_any("r", 4),
    "put over what ended": lambda t, f: t.states.put("r", 4, fence=f),
    "end by a put": lambda t, f: t.states.put("put", 2, status="failed", fence=f),
}
_EXPIRED: dict[str, Step] = {
    "update what expired": _at_any("e", 2),
    "delete what expired": lambda t, f: t.states.delete("e", expected_revision=ANY_REVISION, fence=f),
    "create what expired": lambda t, f: t.states.create("e", 3, fence=f),
    "put what expired": lambda t, f: t.states.put("f", 3, fence=f),
}


class TestGuardedWrites:
    """P6 and P2: a write whose lease is held does and says what the same write does without a fence."""

    def test_a_record_is_written_and_refused_as_without_a_fence(self, harness: Harness) -> None:
        plain, guarded = harness.tenant("plain"), harness.tenant("guarded")
        fence = guarded.leases.acquire("l", owner="a", ttl_seconds=30 * _DAY).fence
        for number, steps in enumerate((_LIVE, _EXPIRED)):
            harness.advance(61 * number)
            for name, step in steps.items():
                assert _told(guarded, step, fence) == _told(plain, step, None), name
        for tenant in (plain, guarded):
            assert tenant.states.require("r").is_terminal
            assert tenant.states.list_ids().items == ("e", "ended", "f", "put", "r")
        harness.advance(61)
        assert harness.clients[0].system.retain(terminal_age_seconds=60).states == 6
        for tenant in (plain, guarded):
            assert tenant.states.list_ids().items == ("e", "f")

    @pytest.mark.parametrize("end", ["complete", "abandon", "forget"])
    def test_a_key_is_ended_and_refused_as_without_a_fence(self, harness: Harness, end: str) -> None:
        plain, guarded = harness.tenant("plain"), harness.tenant("guarded")
        fence = guarded.leases.acquire("l", owner="a", ttl_seconds=30 * _DAY).fence
        attempts = [tenant.idempotency.reserve("k", **_KEYS).attempt for tenant in (plain, guarded)]

        def steps(attempt: Attempt) -> dict[str, Step]:
            late = Attempt("k", attempt.number - 1)
            ends: dict[str, Step] = {
                "complete": lambda t, f: t.idempotency.complete(attempt, "done", fence=f),
                "abandon": lambda t, f: t.idempotency.abandon(attempt, fence=f),
                "forget": lambda t, f: t.idempotency.forget("k", fence=f),
            }
            return {
                "complete another's": lambda t, f: t.idempotency.complete(late, "late", fence=f),
                "abandon another's": lambda t, f: t.idempotency.abandon(late, fence=f),
                "forget nothing": lambda t, f: t.idempotency.forget("nothing", fence=f),
                end: ends[end],
                "look": lambda t, _: t.idempotency.get("k"),
                "complete what is over": ends["complete"],
                "abandon what is over": ends["abandon"],
                "reserve again": lambda t, _: told(lambda: t.idempotency.reserve("k", **_KEYS)),
            }

        of_the_plain, of_the_guarded = (steps(attempt) for attempt in attempts)
        for name in of_the_plain:
            expected = _told(plain, of_the_plain[name], None)
            assert _told(guarded, of_the_guarded[name], fence) == expected, name
        for tenant in (plain, guarded):
            tenant.idempotency.forget("k")
        harness.advance(601)
        for tenant in (plain, guarded):
            assert not tenant.idempotency.reserve("k", **_KEYS).completed

    @pytest.mark.parametrize("call", [c for c in CALLS if "fence" in c.parameters and c.noun != "leases"], ids=str)
    def test_a_grant_that_ran_out_guards_nothing_though_nobody_took_it(
        self, harness: Harness, call: PublicCall
    ) -> None:
        p = prepare(harness)
        short = p.tenant.leases.acquire("short", owner="a", ttl_seconds=60).fence
        harness.advance(61)
        before = p.snapshot()
        with pytest.raises(FencingRejectedError):
            if call.noun == "tenant":
                with p.tenant.transaction(fence=short) as tx:
                    tx.states.put(p.record, "late")
            else:
                call.run(p, fence=short)
        assert p.snapshot() == before


def _told(tenant: Tenant, step: Step, fence: Fence | None) -> object:
    """Return what came of a step, and how the record's times stand to each other."""
    kept: list[object] = []

    def run() -> object:
        kept.append(step(tenant, fence))
        return kept[0]

    answer = told(run)
    if not kept or not isinstance(kept[0], StateRecord):
        return answer
    record = kept[0]
    read = tenant.states.require(record.id)
    lasts = None if record.expires_at is None else round((record.expires_at - record.created_at).total_seconds(), -1)
    return answer, lasts, record.created_at == record.updated_at, read == record
