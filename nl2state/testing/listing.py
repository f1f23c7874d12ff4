"""The promises about lists: pages in the order of the names, each of a bounded number of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from nl2state.errors import InvalidInputError
from nl2state.idempotency import Reservation
from nl2state.pages import Page
from nl2state.payload import fingerprint
from nl2state.store import Tenant
from nl2state.testing.harness import Harness

__all__ = ["TestPagesOfKeys", "TestPagesOfLeases", "TestPagesOfStates"]

T = TypeVar("T")

_NAMES = ["a", "a b", "a%", "aB", "a_", "aa", "b", "order-10", "order-9", "ord\u00e9r"]
_NAMES += ["\u00e9", "\ud7ff", "\ue000", "\U0001f600"]
"""In the order of their bytes, which is no language's."""


class TestPagesOfStates:
    """P11 and P1: a list is paged by key, reads a bounded number of rows, and is of its own scope."""

    def test_records_are_listed_in_the_order_of_their_bytes(self, harness: Harness) -> None:
        states = harness.tenant().states
        for name in reversed(_NAMES):
            states.create(name, {"name": name}, status="running", request_id="q")
        harness.tenant("other").states.create("a0", "another's")
        page = harness.tenant(client=1).states.list()
        assert [record.id for record in page.items] == _NAMES
        assert page.after is None
        assert page.items == tuple(states.require(name) for name in _NAMES)
        assert states.list_ids() == Page(tuple(_NAMES), None)
        assert harness.tenant("nobody").states.list() == Page((), None)

    @pytest.mark.parametrize("limit", [1, 2, 3, len(_NAMES), 100])
    def test_pages_follow_one_another_without_a_gap_or_a_repetition(self, harness: Harness, limit: int) -> None:
        states = harness.tenant().states
        for name in _NAMES:
            states.create(name, 1)
        pages = _pages(lambda after: states.list_ids(after=after, limit=limit))
        assert [len(page.items) for page in pages[:-1]] == [limit] * (len(pages) - 1)
        assert _joined(pages) == _NAMES
        assert [record.id for record in _joined(_pages(lambda after: states.list(after=after, limit=limit)))] == _NAMES

    def test_an_after_that_is_no_record_is_a_place_like_any_other(self, harness: Harness) -> None:
        states = harness.tenant().states
        for name in ("a", "c", "e"):
            states.create(name, 1)
        page = states.list_ids(limit=2)
        states.delete("c", expected_revision=1)
        assert harness.clients[0].system.retain().states == 0
        harness.advance(86_401)
        assert harness.clients[0].system.retain().states == 1
        assert states.list_ids(after=page.after) == Page(("e",), None)
        assert states.list_ids(after="b", limit=1) == Page(("e",), None)
        assert states.list_ids(after="e") == Page((), None)

    @pytest.mark.parametrize(
        ("prefix", "names"),
        [
            ("a", ["a", "a b", "a%", "aB", "a_", "aa"]),
            ("a ", ["a b"]),
            ("a%", ["a%"]),
            ("a_", ["a_"]),
            ("A", []),
            ("order-", ["order-10", "order-9"]),
            ("\u00e9", ["\u00e9"]),
            ("\ud7ff", ["\ud7ff"]),
            ("", _NAMES),
            ("\U0010ffff", []),
        ],
    )
    def test_a_prefix_is_compared_byte_by_byte(self, harness: Harness, prefix: str, names: list[str]) -> None:
        states = harness.tenant().states
        for name in _NAMES:
            states.create(name, 1)
        assert states.list_ids(prefix=prefix) == Page(tuple(names), None)
        assert [record.id for record in states.list(prefix=prefix).items] == names
        assert _joined(_pages(lambda after: states.list_ids(prefix=prefix, after=after, limit=1))) == names
        assert states.list_ids(prefix=prefix, after="zzz").items == tuple(name for name in names if name > "zzz")

    def test_a_prefix_may_end_where_no_name_is_greater(self, harness: Harness) -> None:
        states = harness.tenant().states
        names = ["\U0010fffe", "\U0010ffff", "\U0010ffffa", "\U0010ffff" * 63]
        for name in (*names, "b\U0010ffff", "b\U0010ffff\U0010ffff", "c"):
            states.create(name, 1)
        assert states.list_ids(prefix="\U0010ffff").items == tuple(names[1:])
        assert states.list_ids(prefix="b\U0010ffff").items == ("b\U0010ffff", "b\U0010ffff\U0010ffff")
        assert states.list_ids(prefix="b").items == ("b\U0010ffff", "b\U0010ffff\U0010ffff")
        assert states.list_ids().items == ("b\U0010ffff", "b\U0010ffff\U0010ffff", "c", *names)

    def test_what_expired_or_was_deleted_is_absent(self, harness: Harness) -> None:
        states = harness.tenant().states
        states.create("deleted", 1)
        states.delete("deleted", expected_revision=1)
        states.create("expired", 1, ttl_seconds=60)
        states.create("kept", 1, ttl_seconds=600)
        assert states.list_ids().items == ("expired", "kept")
        harness.advance(61)
        assert states.list_ids() == Page(("kept",), None)
        assert [record.id for record in states.list().items] == ["kept"]

    def test_a_status_is_compared(self, harness: Harness) -> None:
        states = harness.tenant().states
        for name, status in (("a", "running"), ("b", "succeeded"), ("c", "running"), ("d", "created")):
            states.create(name, 1, status=status)
        assert states.list_ids(status="running") == Page(("a", "c"), None)
        assert [record.id for record in states.list(status="succeeded").items] == ["b"]
        assert states.list_ids(status="of another lifecycle") == Page((), None)

    def test_a_page_bounds_the_rows_that_are_looked_at(self, harness: Harness) -> None:
        states = harness.tenant().states
        for number in range(10):
            states.create(f"r{number}", number, status="running" if number == 7 else "created")
        states.delete("r2", expected_revision=1)
        pages = _pages(lambda after: states.list_ids(status="running", after=after, limit=4))
        assert [(page.items, page.after) for page in pages] == [((), "r3"), (("r7",), "r7"), ((), None)]
        records = _pages(lambda after: states.list(status="running", after=after, limit=4))
        assert [page.after for page in records] == [page.after for page in pages]
        assert [record.id for record in _joined(records)] == ["r7"]
        assert states.list_ids(after="r0", limit=2) == Page(("r1",), "r2")

    def test_a_transaction_lists_what_it_wrote(self, harness: Harness) -> None:
        tenant = harness.tenant()
        tenant.states.create("b", 1)
        with tenant.transaction() as tx:
            tx.states.create("a", 1)
            tx.states.delete("b", expected_revision=1)
            assert tx.states.list_ids() == Page(("a",), None)
            assert [record.id for record in tx.states.list().items] == ["a"]
            assert harness.tenant(client=1).states.list_ids() == Page(("b",), None)
            assert harness.tenant(client=1).states.list_ids(limit=1) == Page(("b",), None)

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            *(("limit", value) for value in (0, -1, 1_001, 2.0, True, None)),
            *(("after", value) for value in ("", "a\x00", "x" * 256, 7)),
            *(("prefix", value) for value in ("a\x00", "\ud800", "x" * 256, 7)),
            *(("status", value) for value in ("", " a")),
        ],
    )
    def test_what_a_page_cannot_be_is_refused(self, harness: Harness, field: str, value: Any) -> None:
        for call in (harness.tenant().states.list, harness.tenant().states.list_ids):
            with pytest.raises(InvalidInputError) as refused:
                call(**{field: value})
            assert refused.value.field == field


class TestPagesOfLeases:
    """P11 and P1: the leases that are held in a scope, in pages by resource."""

    def test_held_leases_are_listed_in_the_order_of_their_resources(self, harness: Harness) -> None:
        leases = harness.tenant().leases
        for name in reversed(_NAMES):
            leases.acquire(name, owner=f"owner of {name}", ttl_seconds=60, metadata={"name": name})
        harness.tenant("other").leases.acquire("a0", owner="another", ttl_seconds=60)
        page = harness.tenant(client=1).leases.list()
        assert [record.resource for record in page.items] == _NAMES
        assert page.after is None
        assert page.items == tuple(leases.inspect(name) for name in _NAMES)
        assert harness.tenant("nobody").leases.list() == Page((), None)

    @pytest.mark.parametrize("limit", [1, 3, len(_NAMES)])
    def test_pages_follow_one_another_without_a_gap_or_a_repetition(self, harness: Harness, limit: int) -> None:
        leases = harness.tenant().leases
        for name in _NAMES:
            leases.acquire(name, owner="a", ttl_seconds=60)
        pages = _pages(lambda after: leases.list(after=after, limit=limit))
        assert [len(page.items) for page in pages[:-1]] == [limit] * (len(pages) - 1)
        assert [record.resource for record in _joined(pages)] == _NAMES

    def test_an_expired_one_is_listed_as_such_and_a_free_one_is_not(self, harness: Harness) -> None:
        leases = harness.tenant().leases
        leases.acquire("expired", owner="a", ttl_seconds=60)
        leases.release(leases.acquire("released", owner="a", ttl_seconds=60).fence)
        leases.acquire("revoked", owner="a", ttl_seconds=60)
        leases.revoke("revoked")
        leases.acquire("valid", owner="a", ttl_seconds=600)
        harness.advance(61)
        listed = leases.list()
        assert [(record.resource, record.expired) for record in listed.items] == [("expired", True), ("valid", False)]

    def test_a_page_bounds_the_rows_that_are_looked_at(self, harness: Harness) -> None:
        leases = harness.tenant().leases
        for number in range(7):
            lease = leases.acquire(f"r{number}", owner="a", ttl_seconds=60)
            if number != 5:
                leases.release(lease.fence)
        pages = _pages(lambda after: leases.list(after=after, limit=3))
        assert [([record.resource for record in page.items], page.after) for page in pages] == [
            ([], "r2"),
            (["r5"], "r5"),
            ([], None),
        ]

    def test_what_a_page_cannot_be_is_refused(self, harness: Harness) -> None:
        for field, value in (("limit", 0), ("limit", 1_001), ("limit", True), ("after", ""), ("after", "x" * 256)):
            options: dict[str, Any] = {field: value}
            with pytest.raises(InvalidInputError) as refused:
                harness.tenant().leases.list(**options)
            assert refused.value.field == field


class TestPagesOfKeys:
    """P11 and P1: the idempotency keys of a scope, in pages."""

    def test_keys_are_listed_in_their_order_as_they_stand(self, harness: Harness) -> None:
        keys = harness.tenant().idempotency
        for name in reversed(_NAMES):
            _reserve(harness.tenant(), name)
        keys.complete(_reserve(harness.tenant(), "completed").attempt, {"charge": "ch_1"})
        keys.complete(_reserve(harness.tenant(), "told").attempt, outcome_fingerprint=fingerprint("told"))
        _reserve(harness.tenant("other"), "a0")
        page = harness.tenant(client=1).idempotency.list()
        assert [record.attempt.key for record in page.items] == sorted([*_NAMES, "completed", "told"])
        assert page.after is None
        assert page.items == tuple(keys.get(record.attempt.key) for record in page.items)
        assert harness.tenant("nobody").idempotency.list() == Page((), None)

    @pytest.mark.parametrize("limit", [1, 3, len(_NAMES)])
    def test_pages_follow_one_another_without_a_gap_or_a_repetition(self, harness: Harness, limit: int) -> None:
        for name in _NAMES:
            _reserve(harness.tenant(), name)
        pages = _pages(lambda after: harness.tenant().idempotency.list(after=after, limit=limit))
        assert [len(page.items) for page in pages[:-1]] == [limit] * (len(pages) - 1)
        assert [record.attempt.key for record in _joined(pages)] == _NAMES

    def test_what_expired_or_was_dropped_is_absent(self, harness: Harness) -> None:
        keys = harness.tenant().idempotency
        _reserve(harness.tenant(), "expired")
        keys.abandon(_reserve(harness.tenant(), "abandoned").attempt)
        _reserve(harness.tenant(), "forgotten")
        keys.forget("forgotten")
        _reserve(harness.tenant(), "ran out", result_ttl_seconds=600)
        harness.advance(61)
        assert [record.attempt.key for record in keys.list().items] == ["ran out"]

    def test_a_record_s_keys_are_found_within_the_bound_of_a_page(self, harness: Harness) -> None:
        for number in range(7):
            _reserve(harness.tenant(), f"k{number}", record_id="order-1" if number == 5 else None)
        _reserve(harness.tenant(), "k7", record_id="order-2")
        keys = harness.tenant().idempotency
        pages = _pages(lambda after: keys.list(record_id="order-1", after=after, limit=3))
        assert [([record.attempt.key for record in page.items], page.after) for page in pages] == [
            ([], "k2"),
            (["k5"], "k5"),
            ([], None),
        ]

    def test_what_a_page_cannot_be_is_refused(self, harness: Harness) -> None:
        for field, value in (("limit", 0), ("limit", 1_001), ("after", ""), ("after", "x" * 256), ("record_id", "")):
            options: dict[str, Any] = {field: value}
            with pytest.raises(InvalidInputError) as refused:
                harness.tenant().idempotency.list(**options)
            assert refused.value.field == field


def _reserve(tenant: Tenant, key: str, *, record_id: str | None = None, result_ttl_seconds: float = 60) -> Reservation:
    return tenant.idempotency.reserve(
        key, request=None, record_id=record_id, result_ttl_seconds=result_ttl_seconds, attempt_ttl_seconds=60
    )


def _pages(call: Callable[[str | None], Page[T]]) -> list[Page[T]]:
    """Read pages to the end."""
    pages = [call(None)]
    while pages[-1].after is not None:
        assert len(pages) < 100, "the pages do not end"
        pages.append(call(pages[-1].after))
    return pages


def _joined(pages: list[Page[T]]) -> list[T]:
    return [item for page in pages for item in page.items]
