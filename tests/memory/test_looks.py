"""No call looks at more rows because there are more: what PostgreSQL answers by an index is not answered by a walk."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any
from uuid import UUID

import pytest

import nl2state_memory
from nl2state.testing.calls import CALLS, PublicCall, prepare
from tests.memory.harness import MemoryHarness

_PACKAGE = str(Path(nl2state_memory.__file__).parent)
_FEW, _MANY = 20, 200
_SPARE = 60
"""What a call may do more: far less than once for each row."""
_DAY = 86_400.0


@pytest.mark.parametrize("call", CALLS, ids=str)
def test_a_call_does_no_more_though_there_are_more_rows(call: PublicCall) -> None:
    few, many = (_steps_among(rows, call) for rows in (_FEW, _MANY))
    assert many <= few + _SPARE
    assert few > 10, "nothing was counted"


def test_a_clean_up_that_finds_nothing_does_no_more_either() -> None:
    steps = []
    for rows in (_FEW, _MANY):
        harness = _filled(rows)
        system = harness.clients[0].system
        after = system.retain().after
        while after is not None:
            after = system.retain(after=after).after
        steps.append(_steps(lambda: system.retain(limit=10)))  # noqa: B023  # called at once
        harness.close()
    assert steps[1] <= steps[0] + _SPARE


def test_a_scope_counts_while_it_has_a_committed_row(memory: MemoryHarness) -> None:
    states, nothing = memory._store._database.states, UUID(int=0)
    with memory.tenant().transaction() as tx:
        tx.states.create("s", 1, ttl_seconds=60)
        assert states.next_scope(nothing) is None
    for _ in range(2):
        scope = states.next_scope(nothing)
        assert scope is not None
        assert states.next_scope(scope) is None
        memory.advance(2 * _DAY)
        assert memory.clients[0].system.retain().states == 1
        assert states.next_scope(nothing) is None
        memory.tenant().states.create("s", 1, ttl_seconds=60)


def test_the_count_would_show_a_walk() -> None:
    harness = _filled(_MANY)
    database = harness._store._database
    tenant = harness.tenant()
    scope = tenant._binding.scope  # type: ignore[attr-defined]  # of this backend's
    steps = _steps(lambda: list(database.states.in_order(scope, "")))
    assert steps > _MANY
    harness.close()


def _steps_among(rows: int, call: PublicCall) -> int:
    """Return how many steps a call takes among so many rows of each kind, and as many of an open transaction."""
    harness = _filled(rows)
    p = prepare(harness)
    with harness.tenant("another", client=1).transaction() as tx:
        for number in range(rows):
            tx.states.create(f"s-{number}", 1)
        changed: dict[str, Any] = {"terminal_age_seconds": 60.0} if call.noun == "system" else {}
        steps = _steps(lambda: call.run(p, **changed))
    harness.close()
    return steps


def _filled(rows: int) -> MemoryHarness:
    """Return a store with rows of each kind that a clean-up removes, and of each that it does not."""
    harness = MemoryHarness()
    tenant = harness.tenant()
    for number in range(rows):
        name = f"s-{number:04}"
        tenant.states.create(f"{name}-expired", 1, ttl_seconds=60)
        tenant.states.create(f"{name}-ended", 1, status="succeeded")
        tenant.states.create(f"{name}-deleted", 1)
        tenant.states.delete(f"{name}-deleted", expected_revision=1)
        for life in (60.0, 30 * _DAY):
            tenant.leases.acquire(f"{name}-{life}", owner="a", ttl_seconds=life)
            tenant.idempotency.reserve(
                f"{name}-{life}", request=1, result_ttl_seconds=life, attempt_ttl_seconds=life, record_id="s"
            )
    harness.advance(2 * _DAY)
    for number in range(rows):
        tenant.states.create(f"s-{number:04}", 1, ttl_seconds=_DAY)
        tenant.states.create(f"s-{number:04}-deleted lately", 1)
        tenant.states.delete(f"s-{number:04}-deleted lately", expected_revision=1)
    return harness


def _steps(call: Callable[[], object]) -> int:
    """Return how many lines, and turns of a loop, of the memory backend run in a call. Not how long it takes."""
    steps = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal steps
        if not frame.f_code.co_filename.startswith(_PACKAGE):
            return None
        steps += event in ("call", "line")
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return steps
