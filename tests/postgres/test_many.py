"""P9: a call for many that is not atomic does not raise once it has done something: what fails then is a refusal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nl2state import (
    Completion,
    FencingRejectedError,
    KeyRequest,
    NewState,
    RevisionConflictError,
    StateUpdate,
    StoreError,
    StoreUnavailableError,
    Tenant,
)
from nl2state_postgres.connection import Connection
from tests.servers import PostgresHarness

_GONE = StoreUnavailableError("the server is gone")
After = Callable[[str, Callable[[Any], None]], None]


@pytest.fixture
def after(monkeypatch: pytest.MonkeyPatch) -> After:
    """Return what does something with the answer of each statement of a name, before it is returned."""
    run = Connection.run

    def after_statement(name: str, do: Callable[[Any], None]) -> None:
        def run_and_do(self: Connection, statement: Any, values: Any, **options: Any) -> Any:
            answer = run(self, statement, values, **options)
            if statement.name == name:
                do(answer)
            return answer

        monkeypatch.setattr(Connection, "run", run_and_do)

    return after_statement


def _gone(_: Any) -> None:
    raise _GONE


def _updates(tenant: Tenant) -> list[StateUpdate[Any]]:
    for name in ("a", "b"):
        tenant.states.create(name, 0)
    return [StateUpdate("b", 1, 7), StateUpdate("a", 1, 1)]


def _reserved(tenant: Tenant) -> list[Completion]:
    options = {"request": 1, "result_ttl_seconds": 60, "attempt_ttl_seconds": 60}
    attempts = [tenant.idempotency.reserve(key, **options).attempt for key in ("a", "b")]  # type: ignore[arg-type]
    tenant.idempotency.abandon(attempts[0])
    return [Completion(attempt, 1) for attempt in attempts]


def test_an_update_whose_refusal_cannot_be_explained(harness: PostgresHarness, after: After) -> None:
    tenant = harness.tenant()
    items = _updates(tenant)
    after("explain_states", _gone)
    outcomes = tenant.states.update_many(items, atomic=False)
    assert outcomes[1].revision == tenant.states.require("a").revision == 2
    _is(outcomes.refusals[0], StoreUnavailableError)
    with pytest.raises(StoreUnavailableError):  # nothing was done
        tenant.states.update_many(items, atomic=False)
    with pytest.raises(StoreUnavailableError):
        tenant.states.update_many([items[0], StateUpdate("a", 1, 2)], atomic=True)
    assert tenant.states.require("a").revision == 2


def test_a_creation_whose_refusal_cannot_be_explained(harness: PostgresHarness, after: After) -> None:
    tenant = harness.tenant()
    tenant.states.create("there", 0)
    after("explain_states", _gone)
    outcomes = tenant.states.create_many([NewState("there", 1), NewState("new", 1)], atomic=False)
    assert outcomes[1] == tenant.states.require("new")
    _is(outcomes.refusals[0], StoreUnavailableError)


def test_an_update_whose_lease_is_lost_after_it(harness: PostgresHarness, after: After) -> None:
    tenant = harness.tenant()
    items = _updates(tenant)
    fence = tenant.leases.acquire("r", owner="o", ttl_seconds=10).fence
    after("update_states_fenced", lambda _: harness.move_clock(11))
    outcomes = tenant.states.update_many(items, atomic=False, fence=fence)
    assert outcomes[1].revision == tenant.states.require("a").revision == 2
    _is(outcomes.refusals[0], RevisionConflictError)  # the lease was held by then, since the other was written
    with pytest.raises(FencingRejectedError):
        tenant.states.update_many(items, atomic=False, fence=fence)


def test_an_update_that_has_to_be_tried_again_and_then_fails(harness: PostgresHarness, after: After) -> None:
    tenant = harness.tenant()
    items = _updates(tenant)
    tries: list[int] = []

    def again(answer: Any) -> None:
        tries.append(len(answer.rows))
        if len(tries) == 1:  # what stood against the other is over by the time that it is looked for
            harness.observer.execute(f"UPDATE {harness.schema}.states SET revision = 7 WHERE record_id = 'b'")
        else:
            raise RevisionConflictError("another", revision=1, status="created")

    after("update_states", again)
    outcomes = tenant.states.update_many(items, atomic=False)
    assert tries == [1, 1]
    assert outcomes[1].revision == 2
    _is(outcomes.refusals[0], RevisionConflictError)


def test_a_completion_whose_lease_is_lost_after_it(harness: PostgresHarness, after: After) -> None:
    tenant = harness.tenant()
    items = _reserved(tenant)
    fence = tenant.leases.acquire("r", owner="o", ttl_seconds=10).fence
    after("complete_keys_fenced", lambda _: harness.move_clock(11))
    outcomes = tenant.idempotency.complete_many(items, atomic=False, fence=fence)
    assert outcomes[1] is None
    record = tenant.idempotency.get("b")
    assert record is not None
    assert record.outcome == 1
    _is(outcomes.refusals[0], FencingRejectedError)


def test_a_reservation_that_has_to_be_tried_again_and_then_fails(harness: PostgresHarness, after: After) -> None:
    tenant = harness.tenant()
    tries: list[int] = []

    def again(answer: Any) -> None:
        tries.append(len(answer.rows))
        if len(tries) > 1:
            raise _GONE
        answer.rows.pop()  # as where somebody reserved it meanwhile

    after("reserve_keys", again)
    items = [KeyRequest("a", 1), KeyRequest("b", 1)]
    outcomes = tenant.idempotency.reserve_many(items, result_ttl_seconds=60, attempt_ttl_seconds=60, atomic=False)
    assert tries == [2, 1]
    done = next(index for index in range(2) if index not in outcomes.refusals)
    tenant.idempotency.complete(outcomes[done].attempt, 1)
    _is(outcomes.refusals[1 - done], StoreUnavailableError, index=1 - done)


def _is(refusal: StoreError, kind: type[StoreError], *, index: int = 0) -> None:
    assert type(refusal) is kind
    assert refusal.index == index
    assert refusal.__traceback__ is None
    assert refusal.__context__ is None
