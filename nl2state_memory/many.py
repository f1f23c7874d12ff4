"""Calls for many items: the call for one, for each of them, in one unit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from nl2state.errors import AttemptInFlightError, ConflictError, FencingRejectedError, StoreError
from nl2state.many import Outcomes

__all__ = ["run_each"]

R = TypeVar("R")


def run_each(names: Sequence[str], one: Callable[[int], R], *, atomic: bool) -> Outcomes[R]:
    """Run the call for one for the index of each name, and return what came of each.

    Their rows are locked in the order of their names, whatever that of the items is: so two calls over the same rows
    wait for each other in turn, and never both. A refusal is its item's, unless the call is `atomic`: then the first in
    the order of the items is raised, and the unit that this runs in undoes the others. Any other error is the call's.
    """
    results: dict[int, R | StoreError] = {}
    for index in sorted(range(len(names)), key=names.__getitem__):
        try:
            results[index] = one(index)
        except (ConflictError, FencingRejectedError, AttemptInFlightError) as error:
            results[index] = error.at(index)
    return Outcomes([results[index] for index in range(len(names))], atomic=atomic)
