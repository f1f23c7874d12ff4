"""Outcomes: a sequence that lets no refusal be overlooked."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Sequence

import pytest

from nl2state import Limits, NotFoundError, Outcomes, PayloadError, RevisionConflictError
from nl2state.many import check_bytes


def _mixed() -> Outcomes[str]:
    return Outcomes(["a", NotFoundError("absent", index=1), "c", RevisionConflictError("late", index=3, revision=7)])


def test_outcomes_are_a_sequence_of_what_was_accepted() -> None:
    outcomes = Outcomes(iter(["a", "b", "c"]))
    assert isinstance(outcomes, Sequence)
    assert list(outcomes) == ["a", "b", "c"]
    assert (len(outcomes), outcomes[0], outcomes[-1], outcomes[1:]) == (3, "a", "c", ("b", "c"))
    assert "b" in outcomes
    assert list(reversed(outcomes)) == ["c", "b", "a"]
    assert outcomes.refusals == {}
    with pytest.raises(IndexError):
        outcomes[3]
    assert not Outcomes[str](())


def test_to_take_what_was_refused_raises_it() -> None:
    outcomes = _mixed()
    assert (outcomes[0], outcomes[2], outcomes[:1], outcomes[::2]) == ("a", "c", ("a",), ("a", "c"))
    for taken in (lambda: outcomes[1], lambda: outcomes[-3], lambda: outcomes[1:3], lambda: list(outcomes)):
        with pytest.raises(NotFoundError) as refused:
            taken()
        assert refused.value.index == 1
    with pytest.raises(RevisionConflictError) as late:
        outcomes[3]
    assert (late.value.index, late.value.revision) == (3, 7)


def test_each_refusal_is_there_by_its_index_and_cannot_be_lost() -> None:
    outcomes = _mixed()
    assert [(index, type(error), error.index) for index, error in outcomes.refusals.items()] == [
        (1, NotFoundError, 1),
        (3, RevisionConflictError, 3),
    ]
    with pytest.raises(TypeError):
        del outcomes.refusals[1]  # type: ignore[attr-defined]  # which is the point


def test_one_that_was_raised_gathers_no_traceback() -> None:
    """Else each time that it is taken would hold on to the frames of the last."""
    outcomes = _mixed()
    raised = []
    for _ in range(2):
        with pytest.raises(NotFoundError) as refused:
            outcomes[1]
        raised.append(refused.value)
    assert raised[0] is not raised[1]
    assert outcomes.refusals[1].__traceback__ is None


def test_what_they_say_of_themselves_has_no_value() -> None:
    assert repr(_mixed()) == "<4 outcomes, 2 of them refusals>"


def test_an_index_survives_a_pickle() -> None:
    error = RevisionConflictError("late", index=3, revision=7, status="new")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.args, vars(again)) == (type(error), error.args, vars(error))
    assert vars(error.again()) == vars(error)


def test_the_bound_on_all_values_is_taken() -> None:
    limits = Limits(items_bytes_max=10)
    check_bytes([3, 7], limits)
    check_bytes([], limits)
    with pytest.raises(PayloadError) as refused:
        check_bytes([3, 8], limits)
    assert (refused.value.field, refused.value.limit, refused.value.index) == ("items", 10, None)


def test_outcomes_are_pickled_and_copied_whole() -> None:
    for again in (pickle.loads(pickle.dumps(_mixed())), copy.deepcopy(_mixed())):
        assert (again[0], len(again)) == ("a", 4)
        assert {index: (type(error), error.index) for index, error in again.refusals.items()} == {
            1: (NotFoundError, 1),
            3: (RevisionConflictError, 3),
        }
