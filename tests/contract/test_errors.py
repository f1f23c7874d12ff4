"""The tree of errors: stable codes, truthful fields, and pickles."""

from __future__ import annotations

import inspect
import pickle

import pytest

from nl2state import errors
from nl2state.errors import LeaseBusyError, StoreError

CLASSES = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, StoreError)]


def test_every_class_is_public_and_has_a_code_of_its_own() -> None:
    assert {kind.__name__ for kind in CLASSES} == set(errors.__all__)
    assert len({kind.code for kind in CLASSES}) == len(CLASSES)


@pytest.mark.parametrize("kind", CLASSES)
def test_an_error_survives_a_pickle_whole(kind: type[StoreError]) -> None:
    error = kind("words", **dict.fromkeys(kind.fields, 7))
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert (str(again), vars(again)) == ("words", vars(error))


def test_a_field_that_an_error_does_not_have_is_a_mistake() -> None:
    with pytest.raises(TypeError):
        StoreError("words", owner="a")
    assert LeaseBusyError("words").retry_after_seconds is None


def test_what_is_retryable_says_so() -> None:
    assert {kind.__name__ for kind in CLASSES if kind.retryable} == {
        "AttemptInFlightError",
        "BusyError",
        "LeaseBusyError",
        "StoreTimeoutError",
        "StoreUnavailableError",
    }
