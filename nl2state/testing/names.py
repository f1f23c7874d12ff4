"""The promises about what can be stored, and about what is refused alike everywhere, before anything is kept of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nl2state.errors import InvalidInputError, KeyConflictError, PayloadError
from nl2state.idempotency import Reservation
from nl2state.leases import Fence
from nl2state.payload import Value
from nl2state.states import ANY_REVISION
from nl2state.store import Tenant
from nl2state.testing.harness import Harness

__all__ = ["TestNames", "TestValues"]

_NAMES: list[Any] = [
    pytest.param("", id="empty"),
    pytest.param(None, id="none"),
    pytest.param("a\u0000b", id="zero"),
    pytest.param("\ud800", id="lone surrogate"),
    pytest.param("a\udfff", id="another lone surrogate"),
    pytest.param("x" * 3_000, id="3,000 bytes"),
    pytest.param("\u00fc" * 128, id="256 bytes"),
    pytest.param(" a", id="white space"),
    pytest.param("a\n", id="a control character"),
    pytest.param(b"a", id="bytes"),
]
_NO_VALUES: list[Any] = [
    pytest.param(float("nan"), id="nan"),
    pytest.param({"a": [float("inf")]}, id="infinity"),
    pytest.param([-float("inf")], id="minus infinity"),
    pytest.param("\ud800", id="lone surrogate"),
    pytest.param({"a": ["\udfff"]}, id="lone surrogate within"),
    pytest.param({"\udc00": 1}, id="lone surrogate as a name"),
]


class TestNames:
    """P12: a name that cannot be is refused before the backend is asked, with its field and without its value."""

    @pytest.mark.parametrize("name", _NAMES)
    def test_a_name_that_cannot_be_is_refused_by_every_call(self, harness: Harness, name: Any) -> None:
        """Cases 26, 28, 30 and 31: a zero, a lone surrogate, 3,000 bytes or nothing in an id, a key or an owner."""
        tenant = harness.tenant()
        fence = Fence(name, "a", 1)
        attempt_options: dict[str, Any] = {"result_ttl_seconds": 60, "attempt_ttl_seconds": 60}
        calls: list[tuple[str, Callable[[], object]]] = [
            ("record_id", lambda: tenant.states.create(name, 1)),
            ("record_id", lambda: tenant.states.put(name, 1)),
            ("record_id", lambda: tenant.states.update(name, 1, expected_revision=1)),
            ("record_id", lambda: tenant.states.delete(name, expected_revision=1)),
            ("record_id", lambda: tenant.states.get(name)),
            ("record_id", lambda: tenant.states.get_revision(name)),
            ("request_id", lambda: tenant.states.get_checkpoint("s", name)),
            ("fence", lambda: tenant.states.create("s", 1, fence=fence)),
            ("resource", lambda: tenant.leases.acquire(name, owner="a", ttl_seconds=60)),
            ("owner", lambda: tenant.leases.acquire("r", owner=name, ttl_seconds=60)),
            ("owner", lambda: tenant.leases.try_acquire("r", owner=name, ttl_seconds=60)),
            ("resource", lambda: tenant.hold(name, owner="a").__enter__()),
            ("resource", lambda: tenant.leases.revoke(name)),
            ("resource", lambda: tenant.leases.inspect(name)),
            ("fence", lambda: tenant.leases.renew(fence)),
            ("fence", lambda: tenant.leases.release(fence)),
            ("key", lambda: tenant.idempotency.reserve(name, request=1, **attempt_options)),
            ("key", lambda: tenant.idempotency.get(name)),
            ("key", lambda: tenant.idempotency.forget(name)),
        ]
        if name is not None:  # which says that there is none
            calls += [
                ("request_id", lambda: tenant.states.create("s", 1, request_id=name)),
                ("parent_id", lambda: tenant.states.put("s", 1, parent_id=name)),
                ("record_id", lambda: tenant.idempotency.reserve("k", request=1, record_id=name, **attempt_options)),
            ]
        for field, call in calls:
            with pytest.raises(InvalidInputError) as refused:
                call()
            assert refused.value.field == field
            assert not refused.value.retryable
            assert not isinstance(name, str) or len(name) < 4 or name not in str(refused.value)
        assert tenant.states.list_ids().items == ()
        assert tenant.leases.list().items == ()
        assert tenant.idempotency.list().items == ()

    def test_a_name_of_255_bytes_is_one_everywhere(self, harness: Harness) -> None:
        """Case 30: every backend's index holds names up to the limit, and compares them to their last byte."""
        tenant = harness.tenant()
        for name in ("\u00fc" * 127 + "a", "\u00fc" * 127 + "b"):
            assert len(name.encode()) == 255
            assert tenant.states.create(name, name, request_id=name, parent_id=name).revision == 1
            assert tenant.leases.acquire(name, owner=name, ttl_seconds=60).fence.resource == name
            tenant.idempotency.complete(_reserve(tenant, name, key=name).attempt, name)
            assert tenant.states.require(name).value == name
            assert _reserve(tenant, name, key=name).outcome == name
        with pytest.raises(InvalidInputError) as refused:
            tenant.states.create("\u00fc" * 128, 1)
        assert refused.value.limit == 255


class TestValues:
    """P12: a value comes back as it was given, or is refused before anything is kept of the call."""

    @pytest.mark.parametrize(
        "value",
        ["\u0000", {"\u0000": ["a\u0000b"]}, 9_007_199_254_740_993, -(2**63) - 1, b"\x00", "\ud7ff\ue000\U0010ffff"],
    )
    def test_what_other_stores_lose_makes_the_round_trip(self, harness: Harness, value: Value) -> None:
        """Cases 26 and 29: a zero and a number beyond 2**53, in a record, an outcome, and metadata."""
        tenant, other = harness.tenant(), harness.tenant(client=1)
        tenant.states.create("s", value)
        tenant.idempotency.complete(_reserve(tenant, 1).attempt, value)
        for again in (other.states.require("s").value, _reserve(other, 1).outcome):
            assert again == value
            assert type(again) is type(value)
        if not isinstance(value, bytes):
            tenant.leases.acquire("r", owner="a", ttl_seconds=60, metadata={"value": value})
            record = other.leases.inspect("r")
            assert record is not None
            assert record.metadata == {"value": value}

    def test_numbers_that_a_double_cannot_tell_apart_are_two_requests(self, harness: Harness) -> None:
        """Case 29: 9007199254740993 and 9007199254740992 differ, as values and by their fingerprints."""
        tenant = harness.tenant()
        _reserve(tenant, {"n": 9_007_199_254_740_993})
        with pytest.raises(KeyConflictError):
            _reserve(tenant, {"n": 9_007_199_254_740_992})
        assert tenant.states.create("s", 9_007_199_254_740_993).value != 9_007_199_254_740_992
        assert tenant.states.require("s").value == 9_007_199_254_740_993

    @pytest.mark.parametrize("value", _NO_VALUES)
    def test_what_is_no_value_is_refused_and_nothing_is_kept(self, harness: Harness, value: Any) -> None:
        """Cases 27 and 28: NaN, infinities and lone surrogates, in every call that takes a value."""
        tenant = harness.tenant()
        tenant.states.create("s", "kept")
        attempt = _reserve(tenant, "kept").attempt
        calls: list[Callable[[], object]] = [
            lambda: tenant.states.create("t", value),
            lambda: tenant.states.put("s", value),
            lambda: tenant.states.update("s", value, expected_revision=ANY_REVISION),
            lambda: tenant.idempotency.reserve("q", request=value, result_ttl_seconds=60, attempt_ttl_seconds=60),
            lambda: tenant.idempotency.complete(attempt, value),
            lambda: tenant.leases.acquire("r", owner="a", ttl_seconds=60, metadata={"value": value}),
        ]
        with tenant.transaction() as tx:
            calls += [lambda: tx.states.put("s", value), lambda: tx.idempotency.complete(attempt, value)]
            for call in calls:
                with pytest.raises(PayloadError) as refused:
                    call()
                assert refused.value.field in ("value", "request", "outcome", "metadata")
                assert not refused.value.retryable
            tx.states.update("s", "usable yet", expected_revision=1)
        assert tenant.states.require("s").value == "usable yet"
        assert tenant.states.get("t") is None
        assert tenant.idempotency.get("q") is None
        assert tenant.leases.inspect("r") is None
        tenant.idempotency.complete(attempt, "kept")


def _reserve(tenant: Tenant, request: Value, *, key: str = "k") -> Reservation:
    return tenant.idempotency.reserve(key, request=request, result_ttl_seconds=60, attempt_ttl_seconds=60)
