"""The suite's table of calls is the contract's: what it lacks, of calls or arguments, is not tested."""

from __future__ import annotations

import inspect

import pytest

from nl2state.idempotency import IdempotencyStore
from nl2state.leases import LeaseStore
from nl2state.states import FencedStateStore
from nl2state.store import System, Tenant
from nl2state.testing.calls import CALLS, PublicCall, prepare
from nl2state.testing.harness import Harness

_EXCLUDED = {"request_fingerprint", "outcome_fingerprint"}
"""Given instead of another."""


@pytest.mark.parametrize(
    ("noun", "protocol"),
    [
        ("states", FencedStateStore),
        ("leases", LeaseStore),
        ("idempotency", IdempotencyStore),
        ("tenant", Tenant),
        ("system", System),
    ],
)
def test_every_call_of_the_contract_is_in_the_table(noun: str, protocol: type) -> None:
    public = {name for name, _ in inspect.getmembers(protocol, inspect.isfunction) if not name.startswith("_")}
    assert {call.name for call in CALLS if call.noun == noun} == public - {"of"}  # which asks no backend


@pytest.mark.parametrize("call", CALLS, ids=str)
def test_a_prepared_scope_answers_it_with_all_its_arguments(memory: Harness, call: PublicCall) -> None:
    prepared = prepare(memory)
    assert call.arguments(prepared).keys() == call.parameters.keys() - _EXCLUDED
    call.run(prepared)
