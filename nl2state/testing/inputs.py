"""The promise about bad input: every call refuses it by the argument's name, without its value, and before it asks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest

from nl2state.errors import InvalidInputError, PayloadError, UsageError
from nl2state.idempotency import NO_OUTCOME, NO_REQUEST, Attempt
from nl2state.leases import Fence
from nl2state.store import RetainCursor
from nl2state.testing.calls import CALLS, PublicCall, prepare
from nl2state.testing.harness import Harness
from nl2state.testing.refusals import leaks

__all__ = ["PLANTED", "TestBadInput"]

PLANTED = "planted-4711"
"""What no error may repeat."""

_NAN, _INF = float("nan"), float("inf")
_NO_STRINGS: list[object] = [7, True, PLANTED.encode(), [PLANTED], {PLANTED: PLANTED}]
_NO_PREFIXES = [f"{PLANTED}\x00", f"{PLANTED}\ud800", f"{PLANTED}\x85", PLANTED * 30, *_NO_STRINGS]
_NO_NAMES = ["", f" {PLANTED}", f"{PLANTED}\n", f"{PLANTED}\u2003", *_NO_PREFIXES]
_NO_SECONDS: list[object] = [-1, _NAN, _INF, -_INF, True, PLANTED, PLANTED.encode(), [PLANTED], 10**400]
_NO_LIVES = [0, *_NO_SECONDS]
_NO_INTEGERS: list[object] = [0, -1, True, 1.0, _NAN, PLANTED, [PLANTED], 2**63]
_NO_VALUES: list[object] = [
    _NAN,
    {PLANTED: [_INF]},
    {PLANTED: "\ud800"},
    f"{PLANTED}\ud800",
    {PLANTED: {1: PLANTED}},
    (PLANTED,),
    {PLANTED},
    object(),
    bytearray(PLANTED.encode()),
    {PLANTED: 10**5_000},
]
_CREDENTIALS: list[object] = [{"password": PLANTED}, [{PLANTED: {"API-key": PLANTED}}]]
_NO_FINGERPRINTS: list[object] = ["", PLANTED, f"sha256:{PLANTED}", "sha256:" + "A" * 64, *_NO_STRINGS]
_NO_FENCES: list[object] = [
    PLANTED,
    7,
    (PLANTED, "a", 1),
    Fence(f"{PLANTED}\x00", "a", 1),
    Fence("r", f" {PLANTED}", 1),
    Fence("", "a", 1),
    *(Fence(PLANTED, PLANTED, token) for token in (-1, 2**63, True, 1.0, None, PLANTED)),  # type: ignore[arg-type]  # which is the point
    Fence(7, "a", 1),  # type: ignore[arg-type]  # as above
]
_NO_ATTEMPTS: list[object] = [
    PLANTED,
    7,
    (PLANTED, 1),
    Attempt(f"{PLANTED}\n", 1),
    Attempt("", 1),
    *(Attempt(PLANTED, number) for number in (-1, 2**63, True, 1.0, None, PLANTED)),  # type: ignore[arg-type]  # as above
    Attempt(7, 1),  # type: ignore[arg-type]  # as above
]
_NO_CURSORS: list[object] = [
    PLANTED,
    7,
    (PLANTED,),
    RetainCursor(PLANTED, "keys", ""),  # type: ignore[arg-type]  # as above
    RetainCursor(UUID(int=1), PLANTED, ""),
    RetainCursor(UUID(int=1), 7, ""),  # type: ignore[arg-type]  # as above
    RetainCursor(UUID(int=1), "keys", f"{PLANTED}\x00"),
    RetainCursor(UUID(int=1), "keys", 7),  # type: ignore[arg-type]  # as above
    RetainCursor(UUID(int=1), "ended_states", PLANTED),
    RetainCursor(UUID(int=1), "deleted_states", "2024-11-05T09:12:44"),  # of which zone
    RetainCursor(UUID(int=1), "expired_states", "2024-11-05T09:12:44Z"),
]
_NO_LISTS: list[object] = [PLANTED, 7, {PLANTED: PLANTED}, {PLANTED}, iter([PLANTED]), [object()], [None], [(PLANTED,)]]

_BAD: dict[str, Sequence[object]] = {
    **dict.fromkeys(
        ("record_id", "resource", "owner", "key", "request_id", "parent_id", "expected_status", "after"), _NO_NAMES
    ),
    "prefix": _NO_PREFIXES,
    "status": [PLANTED, *_NO_NAMES],
    "lifecycle": [PLANTED, 7, {PLANTED: PLANTED}],
    **dict.fromkeys(("ttl_seconds", "result_ttl_seconds", "attempt_ttl_seconds"), _NO_LIVES),
    **dict.fromkeys(("wait_seconds", "terminal_age_seconds", "expired_age_seconds"), _NO_SECONDS),
    **dict.fromkeys(("schema_version", "expected_revision", "limit"), _NO_INTEGERS),
    "value": [*_NO_VALUES, *_CREDENTIALS],
    "outcome": [*_NO_VALUES, *_CREDENTIALS],
    "request": _NO_VALUES,
    "metadata": [PLANTED, [PLANTED], PLANTED.encode(), {"m": PLANTED * 400}, {PLANTED: _NAN}, *_CREDENTIALS],
    **dict.fromkeys(("request_fingerprint", "outcome_fingerprint"), _NO_FINGERPRINTS),
    "fence": _NO_FENCES,
    "attempt": _NO_ATTEMPTS,
    **dict.fromkeys(("items", "fences", "record_ids"), _NO_LISTS),
    "atomic": [0, 1, PLANTED, [PLANTED]],
}
"""For each argument, what it cannot be; None as well, where the contract does not have that as its default."""

_INSTEAD = {
    "request_fingerprint": {"request": NO_REQUEST},
    "outcome_fingerprint": {"outcome": NO_OUTCOME},
}
_PAYLOADS = {"value", "outcome", "request", "metadata"}
_NONE_IS_ONE = {"value", "outcome", "request"}

_ARGUMENTS = [(call, name) for call in CALLS for name in call.parameters]


class TestBadInput:
    """P10: bad input is an InvalidInputError that names the argument and not its value, and asks no backend."""

    @pytest.mark.parametrize(("call", "name"), _ARGUMENTS, ids=str)
    def test_an_argument_that_cannot_be_is_refused_by_its_name(
        self, harness: Harness, call: PublicCall, name: str
    ) -> None:
        p = prepare(harness)
        before = p.snapshot()
        for value in _bad(call, name):
            with pytest.raises(InvalidInputError) as refused:
                call.run(p, **_INSTEAD.get(name, {}), **{name: value})
            error = refused.value
            assert error.field == name, value
            assert name in str(error)
            assert (type(error) is PayloadError) is (name in _PAYLOADS), value
            assert error.code == ("INVALID_PAYLOAD" if name in _PAYLOADS else "INVALID_INPUT")
            assert not error.retryable
            assert leaks(error, PLANTED) == []
        assert p.snapshot() == before

    @pytest.mark.parametrize(
        ("call", "name"),
        [(c, n) for c, n in _ARGUMENTS if c.noun in ("states", "idempotency", "leases")],
        ids=str,
    )
    def test_it_is_refused_in_a_transaction_too_which_can_go_on(
        self, harness: Harness, call: PublicCall, name: str
    ) -> None:
        """Or is told first that the call does not work in one: either way, the backend was not asked."""
        p = prepare(harness)
        before = p.snapshot()
        with p.tenant.transaction() as tx:
            holder = getattr(tx, call.noun)
            for value in _bad(call, name):
                with pytest.raises((InvalidInputError, UsageError)) as refused:
                    call.on(holder, p, **_INSTEAD.get(name, {}), **{name: value})
                assert leaks(refused.value, PLANTED) == []
            assert tx.states.require(p.record).revision == 1
        assert p.snapshot() == before

    def test_a_tenant_is_named_by_a_scope_and_by_nothing_else(self, harness: Harness) -> None:
        for scope in [None, UUID(int=1), *_NO_STRINGS, PLANTED]:
            with pytest.raises(InvalidInputError) as refused:
                harness.clients[0].tenant(scope)  # type: ignore[arg-type]  # which is the point
            assert refused.value.field == "scope"
            assert leaks(refused.value, PLANTED) == []

    def test_one_of_two_arguments_that_exclude_each_other_is_needed(self, harness: Harness) -> None:
        keys, p = harness.tenant().idempotency, prepare(harness)
        digest = f"sha256:{'0' * 64}"
        lives: dict[str, Any] = {"result_ttl_seconds": 60, "attempt_ttl_seconds": 60}
        for call, field in (
            (lambda: keys.reserve("new", **lives), "request"),
            (lambda: keys.reserve("new", request=PLANTED, request_fingerprint=digest, **lives), "request"),
            (lambda: keys.complete(p.attempt), "outcome"),
            (lambda: keys.complete(p.attempt, PLANTED, outcome_fingerprint=digest), "outcome"),
        ):
            with pytest.raises(InvalidInputError) as refused:
                call()
            assert refused.value.field == field
            assert leaks(refused.value, PLANTED) == []
        assert keys.get("new") is None


def _bad(call: PublicCall, name: str) -> list[object]:
    """Return what an argument of a call cannot be."""
    if str(call) == "system.retain" and name == "after":
        return _NO_CURSORS
    bad = list(_BAD[name])
    if call.name.startswith("list") and name == "status":
        bad.remove(PLANTED)  # of another lifecycle
    if name not in _NONE_IS_ONE and call.parameters[name].default is not None:
        bad.append(None)
    return bad
