"""The promise about errors: the class, code and fields that were agreed, and nothing of what the caller's rows hold."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from nl2state.errors import (
    AlreadyExistsError,
    AttemptInFlightError,
    FencingRejectedError,
    InvalidInputError,
    KeyConflictError,
    LeaseBusyError,
    NotFoundError,
    PayloadError,
    RevisionConflictError,
    StoreError,
    TerminalError,
    TransitionError,
    UsageError,
)
from nl2state.idempotency import Attempt
from nl2state.leases import Fence
from nl2state.lifecycle import Lifecycle
from nl2state.testing.calls import Prepared, prepare
from nl2state.testing.harness import Harness

__all__ = ["OWNER", "PLANTED", "Refusal", "TestHonestErrors", "leaks"]

PLANTED = "planted-4711"
"""What no error may repeat."""

OWNER = "owner-0815"
"""What an error may tell."""

_STRICT = Lifecycle(initial="created", statuses=frozenset({"created", "running"}), transitions={})
_LIVES: dict[str, Any] = {"result_ttl_seconds": 60, "attempt_ttl_seconds": 60}


class Refusal(NamedTuple):
    """How a caller provokes an error, and all that it may say."""

    provoke: Callable[[Prepared], object]
    kind: type[StoreError]
    code: str
    fields: dict[str, object]
    retryable: bool = False


def _busy(remaining: object) -> bool:
    return isinstance(remaining, float) and 500 < remaining <= 600


_AT_1: dict[str, object] = {"revision": 1, "status": "created"}
_ENDED: dict[str, object] = {"revision": 1, "status": "succeeded"}
_LOST = Fence(f"{PLANTED}-lost", OWNER, 1)
_OVER = Attempt(f"{PLANTED}-over", 1)
_BUSY: dict[str, object] = {"retry_after_seconds": _busy}


def _in_transaction(p: Prepared, lives: dict[str, Any]) -> None:
    with p.tenant.transaction() as tx:
        tx.idempotency.reserve(p.absent, request=PLANTED, **lives)


def _two_fences(p: Prepared) -> None:
    with p.tenant.transaction(fence=p.fence) as tx:
        tx.states.put(p.record, PLANTED, fence=_LOST)


def _closed(p: Prepared) -> None:
    p.store.close()
    p.tenant.states.get(p.record)


_REFUSALS: dict[str, Refusal] = {
    "create what is there": Refusal(
        lambda p: p.tenant.states.create(p.record, PLANTED), AlreadyExistsError, "ALREADY_EXISTS", _AT_1
    ),
    "update at another revision": Refusal(
        lambda p: p.tenant.states.update(p.record, PLANTED, expected_revision=7),
        RevisionConflictError,
        "STATE_CONFLICT",
        _AT_1,
    ),
    "update in another status": Refusal(
        lambda p: p.tenant.states.update(p.record, PLANTED, expected_revision=1, expected_status="running"),
        RevisionConflictError,
        "STATE_CONFLICT",
        _AT_1,
    ),
    "update what is absent": Refusal(
        lambda p: p.tenant.states.update(p.absent, PLANTED, expected_revision=1), NotFoundError, "NOT_FOUND", {}
    ),
    "update what ended": Refusal(
        lambda p: p.tenant.states.update(p.ended, PLANTED, expected_revision=1), TerminalError, "TERMINAL", _ENDED
    ),
    "update against the lifecycle": Refusal(
        lambda p: p.tenant.states.update(p.record, PLANTED, expected_revision=1, status="running", lifecycle=_STRICT),
        TransitionError,
        "TRANSITION",
        _AT_1,
    ),
    "update under a lost fence": Refusal(
        lambda p: p.tenant.states.update(p.record, PLANTED, expected_revision=1, fence=_LOST),
        FencingRejectedError,
        "FENCING_REJECTED",
        {},
    ),
    "put over what ended": Refusal(lambda p: p.tenant.states.put(p.ended, PLANTED), TerminalError, "TERMINAL", _ENDED),
    "put against the lifecycle": Refusal(
        lambda p: p.tenant.states.put(p.record, PLANTED, status="running", lifecycle=_STRICT),
        TransitionError,
        "TRANSITION",
        _AT_1,
    ),
    "put under a lost fence": Refusal(
        lambda p: p.tenant.states.put(p.record, PLANTED, fence=_LOST), FencingRejectedError, "FENCING_REJECTED", {}
    ),
    "delete at another revision": Refusal(
        lambda p: p.tenant.states.delete(p.record, expected_revision=7), RevisionConflictError, "STATE_CONFLICT", _AT_1
    ),
    "delete what is absent": Refusal(
        lambda p: p.tenant.states.delete(p.absent, expected_revision=1), NotFoundError, "NOT_FOUND", {}
    ),
    "require what is absent": Refusal(lambda p: p.tenant.states.require(p.absent), NotFoundError, "NOT_FOUND", {}),
    "acquire what is held": Refusal(
        lambda p: p.tenant.leases.acquire(p.fence.resource, owner=PLANTED, ttl_seconds=60),
        LeaseBusyError,
        "LEASE_BUSY",
        {"owner": OWNER, **_BUSY},
        retryable=True,
    ),
    "renew what was lost": Refusal(
        lambda p: p.tenant.leases.renew(_LOST), FencingRejectedError, "FENCING_REJECTED", {}
    ),
    "release what was lost": Refusal(
        lambda p: p.tenant.leases.release(_LOST), FencingRejectedError, "FENCING_REJECTED", {}
    ),
    "reserve what is in flight": Refusal(
        lambda p: p.tenant.idempotency.reserve(p.attempt.key, request=p.request, **_LIVES),
        AttemptInFlightError,
        "ATTEMPT_IN_FLIGHT",
        _BUSY,
        retryable=True,
    ),
    "reserve for another request": Refusal(
        lambda p: p.tenant.idempotency.reserve(p.done, request=f"{PLANTED} too", **_LIVES),
        KeyConflictError,
        "KEY_CONFLICT",
        {},
    ),
    "reserve for another record": Refusal(
        lambda p: p.tenant.idempotency.reserve(p.attempt.key, request=p.request, record_id=p.record, **_LIVES),
        KeyConflictError,
        "KEY_CONFLICT",
        {},
    ),
    "complete what is over": Refusal(
        lambda p: p.tenant.idempotency.complete(_OVER, PLANTED), FencingRejectedError, "FENCING_REJECTED", {}
    ),
    "complete under a lost fence": Refusal(
        lambda p: p.tenant.idempotency.complete(p.attempt, PLANTED, fence=_LOST),
        FencingRejectedError,
        "FENCING_REJECTED",
        {},
    ),
    "abandon what is over": Refusal(
        lambda p: p.tenant.idempotency.abandon(_OVER), FencingRejectedError, "FENCING_REJECTED", {}
    ),
    "renew an attempt that is over": Refusal(
        lambda p: p.tenant.idempotency.renew(_OVER), FencingRejectedError, "FENCING_REJECTED", {}
    ),
    "forget under a lost fence": Refusal(
        lambda p: p.tenant.idempotency.forget(p.done, fence=_LOST), FencingRejectedError, "FENCING_REJECTED", {}
    ),
    "store a credential": Refusal(
        lambda p: p.tenant.states.create(p.absent, {"password": PLANTED}),
        PayloadError,
        "INVALID_PAYLOAD",
        {"field": "value", "limit": None},
    ),
    "name what has no name": Refusal(
        lambda p: p.tenant.states.get(f"{PLANTED}\n"),
        InvalidInputError,
        "INVALID_INPUT",
        {"field": "record_id", "limit": None},
    ),
    "take the attempt of what is completed": Refusal(
        lambda p: p.tenant.idempotency.reserve(p.done, request=p.request, **_LIVES).attempt, UsageError, "USAGE", {}
    ),
    "reserve in a transaction": Refusal(lambda p: _in_transaction(p, _LIVES), UsageError, "USAGE", {}),
    "use another fence in a fenced transaction": Refusal(_two_fences, UsageError, "USAGE", {}),
    "use a store that is closed": Refusal(_closed, UsageError, "USAGE", {}),
}


class TestHonestErrors:
    """P10: an error of the tree, with a stable code, a truthful `retryable`, and only safe fields."""

    @pytest.mark.parametrize("refusal", _REFUSALS.values(), ids=_REFUSALS.keys())
    def test_a_refusal_says_what_it_may_and_nothing_else(self, harness: Harness, refusal: Refusal) -> None:
        p = prepare(harness, prefix=f"{PLANTED}-", owner=OWNER, value=PLANTED)
        with pytest.raises(StoreError) as raised:
            refusal.provoke(p)
        error = raised.value
        assert type(error) is refusal.kind
        assert (error.code, error.retryable) == (refusal.code, refusal.retryable)
        assert vars(error).keys() == {"index", *refusal.fields}
        assert error.index is None
        for name, expected in refusal.fields.items():
            found = getattr(error, name)
            assert expected(found) if callable(expected) else found == expected, name
        assert len(error.args) == 1
        assert leaks(error, PLANTED) == []
        assert leaks(error, OWNER, allowed=("owner",)) == []
        again = pickle.loads(pickle.dumps(error))  # noqa: S301  # our own, of this moment
        assert (type(again), again.args, vars(again)) == (type(error), error.args, vars(error))
        assert (again.code, again.retryable) == (error.code, error.retryable)

    @pytest.mark.parametrize("name", [name for name, refusal in _REFUSALS.items() if refusal.code != "USAGE"])
    def test_one_that_leaves_a_block_takes_nothing_along(self, harness: Harness, name: str) -> None:
        """A transaction's roll-back, or a lease's release, adds neither a note nor a cause to it."""
        p = prepare(harness, prefix=f"{PLANTED}-", owner=OWNER, value=PLANTED)
        with (
            pytest.raises(_REFUSALS[name].kind) as raised,
            p.tenant.hold(f"{PLANTED}-held", owner=OWNER),
            p.tenant.transaction() as tx,
        ):
            tx.states.put(f"{PLANTED}-beside", PLANTED)
            _REFUSALS[name].provoke(p)
        assert leaks(raised.value, PLANTED) == []
        assert p.tenant.states.get(f"{PLANTED}-beside") is None
        assert p.tenant.leases.inspect(f"{PLANTED}-held") is None

    def test_a_release_that_failed_is_noted_by_its_code_alone(self, harness: Harness) -> None:
        tenant = harness.tenant()
        with pytest.raises(LookupError) as raised, tenant.hold(f"{PLANTED}-r", owner=OWNER, metadata={"m": PLANTED}):
            assert tenant.leases.revoke(f"{PLANTED}-r")
            raise LookupError
        assert [note for note in raised.value.__notes__ if PLANTED in note or OWNER in note] == []
        assert "FENCING_REJECTED" in raised.value.__notes__[0]

    def test_the_search_for_a_secret_finds_it_wherever_it_is(self) -> None:
        assert leaks(StoreError("words"), PLANTED) == []
        assert leaks(StoreError(f"the key {PLANTED}"), PLANTED) != []
        assert leaks(LeaseBusyError("words", owner=PLANTED), PLANTED) != []
        assert leaks(LeaseBusyError("words", owner=PLANTED), PLANTED, allowed=("owner",)) == []
        noted = StoreError("words")
        noted.add_note(PLANTED)
        assert leaks(noted, PLANTED) != []
        for link in ("__cause__", "__context__"):
            chained = StoreError("words")
            setattr(chained, link, StoreError(PLANTED))
            assert leaks(chained, PLANTED) != []
            setattr(chained, link, ValueError("of a driver"))
            assert leaks(chained, PLANTED) != []


def leaks(error: BaseException, secret: str, *, allowed: tuple[str, ...] = ()) -> list[str]:
    """Return where an error, or one that is chained to it, has a secret, or is not one of the store's."""
    found = []
    for each in _chain(error):
        where = {"message": str(each), "args": repr(each.args), "repr": repr(each)}
        where["notes"] = repr(getattr(each, "__notes__", []))
        where |= {name: repr(value) for name, value in vars(each).items() if name not in allowed}
        if not any(secret in repr(getattr(each, name, "")) for name in allowed):
            where["pickle"] = repr(pickle.dumps(each))
        found += [f"{name} of {type(each).__name__}" for name, text in where.items() if secret in text]
        if not isinstance(each, StoreError):
            found.append(f"{type(each).__name__} is none of the store's errors")
    return found


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
