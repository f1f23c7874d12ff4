"""P12: the same sequence of calls gives the same answers and errors on both backends."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.conformance.same import Run, Step, sequence
from tests.memory.harness import MemoryHarness
from tests.servers import PostgresHarness

_LENGTH = 80


@pytest.mark.parametrize("seed", range(40))
def test_the_same_calls_are_answered_alike(seed: int, memory: MemoryHarness, postgres: PostgresHarness) -> None:
    runs = Run(memory), Run(postgres)
    for number, step in enumerate(sequence(seed, _LENGTH)):
        before = len(runs[0].told)
        for run in runs:
            run.do([step])
        assert runs[0].told[before:] == runs[1].told[before:], f"step {number}: {step}"


def test_the_sequences_reach_every_call_and_most_refusals(memory: MemoryHarness) -> None:
    """Or the test above compares nothing."""
    run = Run(memory)
    names = Counter[str]()
    for seed in range(40):
        steps = sequence(seed, _LENGTH)
        _count(steps, names)
        run.do(steps)
    assert len(names) == 32, names
    refused = Counter(str(told[2]) for told in run.told if isinstance(told, tuple) and len(told) == 5)
    assert refused.keys() >= {
        "AlreadyExistsError",
        "AttemptInFlightError",
        "FencingRejectedError",
        "InvalidInputError",
        "KeyConflictError",
        "LeaseBusyError",
        "NotFoundError",
        "PayloadError",
        "RevisionConflictError",
        "TerminalError",
        "TransitionError",
        "UsageError",
    }, refused
    answered = sum(isinstance(told, tuple) and len(told) == 3 for told in run.told)
    assert answered > len(run.told) / 3


def _count(steps: list[Step] | tuple[Step, ...], names: Counter[str]) -> None:
    for step in steps:
        names[f"{step.noun}.{step.name}"] += 1
        _count(step.steps, names)
