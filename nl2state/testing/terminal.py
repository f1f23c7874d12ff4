"""The promises about records that ended, and about which of several refusals a caller is told."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nl2state.errors import (
    AlreadyExistsError,
    FencingRejectedError,
    InvalidInputError,
    NotFoundError,
    RevisionConflictError,
    TerminalError,
    TransitionError,
)
from nl2state.leases import Fence
from nl2state.lifecycle import DEFAULT_LIFECYCLE, Lifecycle
from nl2state.states import ANY_REVISION, NEVER, FencedStateStore
from nl2state.testing.harness import Harness, start_waiting

__all__ = ["TestOrderOfRefusals", "TestTerminal", "Write"]

_ORDERS = Lifecycle(
    initial="new",
    statuses=frozenset({"new", "paid", "shipped", "lost"}),
    terminal=frozenset({"shipped", "lost"}),
    transitions={"new": frozenset({"paid"}), "paid": frozenset({"shipped", "lost"})},
)
_LOST = Fence("nothing", "nobody", 1)

Write = Callable[[FencedStateStore, Fence | None], object]
"""A write, guarded or not."""

_WRITES: dict[str, Write] = {
    "update": lambda s, f: s.update("r", "late", expected_revision=2, fence=f),
    "update at any revision": lambda s, f: s.update("r", "late", expected_revision=ANY_REVISION, fence=f),
    "update in its status": lambda s, f: s.update("r", "late", expected_revision=2, expected_status="failed", fence=f),
    "update to its own status": lambda s, f: s.update("r", "late", expected_revision=2, status="failed", fence=f),
    "update to another": lambda s, f: s.update("r", "late", expected_revision=2, status="running", fence=f),
    "update to another terminal": lambda s, f: s.update("r", "late", expected_revision=2, status="closed", fence=f),
    "update of the expiry": lambda s, f: s.update("r", "first", expected_revision=2, ttl_seconds=NEVER, fence=f),
    "update of the same value": lambda s, f: s.update("r", "ended", expected_revision=2, fence=f),
    "put": lambda s, f: s.put("r", "late", fence=f),
    "put to its own status": lambda s, f: s.put("r", "late", status="failed", fence=f),
    "put to another": lambda s, f: s.put("r", "late", status="running", fence=f),
    "put to another terminal": lambda s, f: s.put("r", "late", status="closed", fence=f),
    "put in another lifecycle": lambda s, f: s.put("r", "late", lifecycle=_ORDERS, fence=f),
}


class TestTerminal:
    """P3: a record in a terminal status is not written again, and the refusal says its status and revision."""

    @pytest.mark.parametrize("status", sorted(DEFAULT_LIFECYCLE.terminal))
    def test_every_terminal_status_ends_a_record(self, harness: Harness, status: str) -> None:
        states = harness.tenant().states
        assert states.create("created", 1, status=status).is_terminal
        states.create("updated", 1)
        assert states.update("updated", 2, expected_revision=1, status=status).is_terminal
        assert states.put("put", 1, status=status).is_terminal
        for record_id, revision in (("created", 1), ("updated", 2), ("put", 1)):
            ended = states.require(record_id)
            assert (ended.is_terminal, ended.status, ended.revision) == (True, status, revision)
            with pytest.raises(TerminalError) as refused:
                states.update(record_id, 3, expected_revision=ANY_REVISION)
            assert (refused.value.revision, refused.value.status) == (revision, status)
            assert states.require(record_id) == ended

    @pytest.mark.parametrize("status", sorted(DEFAULT_LIFECYCLE.statuses - DEFAULT_LIFECYCLE.terminal))
    def test_no_other_status_does(self, harness: Harness, status: str) -> None:
        states = harness.tenant().states
        assert not states.create("r", 1, status=status).is_terminal
        assert not states.update("r", 2, expected_revision=1, status=status).is_terminal
        assert states.put("r", 3).revision == 3

    @pytest.mark.parametrize("guarded", [False, True], ids=["plain", "fenced"])
    @pytest.mark.parametrize("write", _WRITES.values(), ids=_WRITES.keys())
    def test_no_write_passes_alone_or_in_a_transaction(self, harness: Harness, write: Write, guarded: bool) -> None:
        tenant = harness.tenant()
        fence = tenant.leases.acquire("l", owner="a", ttl_seconds=60).fence if guarded else None
        tenant.states.create("r", "first", ttl_seconds=600)
        ended = tenant.states.update("r", "ended", expected_revision=1, status="failed")
        with pytest.raises(TerminalError) as refused:
            write(tenant.states, fence)
        assert (refused.value.revision, refused.value.status) == (2, "failed")
        assert not refused.value.retryable
        with tenant.transaction(fence=fence) as tx:
            tx.states.create("beside", 1)
            with pytest.raises(TerminalError) as refused:
                write(tx.states, None)
            assert (refused.value.revision, refused.value.status) == (2, "failed")
        assert tenant.states.require("r") == ended
        assert tenant.states.get_revision("beside") == 1  # a refusal leaves the transaction usable

    def test_a_transaction_does_not_write_over_its_own_end_of_a_record(self, harness: Harness) -> None:
        tenant = harness.tenant()
        tenant.states.create("r", 1)
        with tenant.transaction() as tx:
            tx.states.update("r", 2, expected_revision=1, status="succeeded")
            with pytest.raises(TerminalError):
                tx.states.put("r", 3)
        assert tenant.states.require("r").value == 2

    def test_a_write_that_waited_for_the_end_of_a_record_is_told(self, harness: Harness) -> None:
        tenant, other = harness.tenant(), harness.tenant(client=1)
        tenant.states.create("r", 1)
        with tenant.transaction() as tx:
            tx.states.update("r", 2, expected_revision=1, status="closed")
            late = start_waiting(harness, lambda: other.states.update("r", 3, expected_revision=ANY_REVISION))
        with pytest.raises(TerminalError) as refused:
            late.result()
        assert (refused.value.revision, refused.value.status) == (2, "closed")

    def test_an_ended_record_is_there_until_it_is_deleted_or_expires(self, harness: Harness) -> None:
        states = harness.tenant().states
        for name in ("deleted", "expired"):
            states.create(name, 1, status="succeeded", ttl_seconds=60)
            with pytest.raises(AlreadyExistsError) as refused:
                states.create(name, 2)
            assert (refused.value.revision, refused.value.status) == (1, "succeeded")
        states.delete("deleted", expected_revision=1)
        assert states.create("deleted", 2).revision == 3
        harness.advance(61)
        assert not states.create("expired", 2).is_terminal
        assert states.update("expired", 3, expected_revision=2).revision == 3

    def test_what_ends_a_record_is_its_own_lifecycle_s(self, harness: Harness) -> None:
        """A status may be terminal in one lifecycle and not in another: the record keeps what it was written with."""
        states = harness.tenant().states
        on_the_way = Lifecycle(initial="new", statuses=frozenset({"new", "shipped"}))
        states.create("ended", 1, lifecycle=_ORDERS, status="lost")
        states.create("going on", 1, lifecycle=on_the_way, status="shipped")
        with pytest.raises(TerminalError):
            states.put("ended", 2, lifecycle=on_the_way)
        assert states.put("going on", 2, lifecycle=_ORDERS).revision == 2


class TestOrderOfRefusals:
    """P3: of several reasons, the first is told: input, fence, absence, revision, status, terminal, transition."""

    def test_input_is_judged_before_the_fence(self, harness: Harness) -> None:
        states = harness.tenant().states
        calls: list[Callable[[], object]] = [
            lambda: states.update("", 1, expected_revision=1, fence=_LOST),
            lambda: states.put("r", float("nan"), fence=_LOST),
            lambda: states.create("r", 1, status="no status", fence=_LOST),
            lambda: states.delete("r", expected_revision=0, fence=_LOST),
        ]
        for call in calls:
            with pytest.raises(InvalidInputError):
                call()

    def test_the_fence_is_judged_before_absence_and_presence(self, harness: Harness) -> None:
        states = harness.tenant().states
        states.create("there", 1)
        calls: list[Callable[[], object]] = [
            lambda: states.update("absent", 1, expected_revision=1, fence=_LOST),
            lambda: states.delete("absent", expected_revision=1, fence=_LOST),
            lambda: states.create("there", 1, fence=_LOST),
            lambda: states.put("absent", 1, fence=_LOST),
        ]
        for call in calls:
            with pytest.raises(FencingRejectedError):
                call()
        assert states.get("absent") is None

    def test_absence_is_judged_before_what_a_former_life_was(self, harness: Harness) -> None:
        states = harness.tenant().states
        states.create("r", 1, status="succeeded")
        states.delete("r", expected_revision=1)
        with pytest.raises(NotFoundError):
            states.update("r", 2, expected_revision=7, status="running")
        with pytest.raises(NotFoundError):
            states.delete("r", expected_revision=7)

    def test_the_fence_is_judged_before_the_revision(self, harness: Harness) -> None:
        states = harness.tenant().states
        states.create("r", 1)
        calls: list[Callable[[], object]] = [
            lambda: states.update("r", 2, expected_revision=7, fence=_LOST),
            lambda: states.update("r", 2, expected_revision=1, expected_status="running", fence=_LOST),
            lambda: states.delete("r", expected_revision=7, fence=_LOST),
        ]
        for call in calls:
            with pytest.raises(FencingRejectedError):
                call()

    def test_the_fence_is_judged_before_a_terminal_status(self, harness: Harness) -> None:
        states = harness.tenant().states
        states.create("r", 1, status="succeeded")
        calls: list[Callable[[], object]] = [
            lambda: states.update("r", 2, expected_revision=1, fence=_LOST),
            lambda: states.put("r", 2, fence=_LOST),
            lambda: states.delete("r", expected_revision=1, fence=_LOST),
        ]
        for call in calls:
            with pytest.raises(FencingRejectedError):
                call()

    def test_the_fence_is_judged_before_a_transition(self, harness: Harness) -> None:
        states = harness.tenant().states
        states.create("r", 1, lifecycle=_ORDERS)
        with pytest.raises(FencingRejectedError):
            states.update("r", 2, expected_revision=1, status="shipped", lifecycle=_ORDERS, fence=_LOST)
        with pytest.raises(FencingRejectedError):
            states.put("r", 2, status="shipped", lifecycle=_ORDERS, fence=_LOST)

    def test_the_revision_is_judged_before_a_terminal_status(self, harness: Harness) -> None:
        states = harness.tenant().states
        states.create("r", 1, status="succeeded")
        calls: list[Callable[[], object]] = [
            lambda: states.update("r", 2, expected_revision=7),
            lambda: states.update("r", 2, expected_revision=1, expected_status="running"),
            lambda: states.update("r", 2, expected_revision=ANY_REVISION, expected_status="running"),
        ]
        for call in calls:
            with pytest.raises(RevisionConflictError) as refused:
                call()
            assert (refused.value.revision, refused.value.status) == (1, "succeeded")

    def test_the_revision_is_judged_before_a_transition(self, harness: Harness) -> None:
        states = harness.tenant().states
        states.create("r", 1, lifecycle=_ORDERS)
        for revision, status in ((7, None), (1, "paid")):
            with pytest.raises(RevisionConflictError):
                states.update(
                    "r", 2, expected_revision=revision, expected_status=status, status="shipped", lifecycle=_ORDERS
                )

    def test_a_terminal_status_is_judged_before_a_transition(self, harness: Harness) -> None:
        states = harness.tenant().states
        states.create("r", 1, status="lost", lifecycle=_ORDERS)
        calls: list[Callable[[], object]] = [
            lambda: states.update("r", 2, expected_revision=1, status="new", lifecycle=_ORDERS),
            lambda: states.update("r", 2, expected_revision=ANY_REVISION, status="shipped", lifecycle=_ORDERS),
            lambda: states.put("r", 2, status="paid", lifecycle=_ORDERS),
        ]
        for call in calls:
            with pytest.raises(TerminalError) as refused:
                call()
            assert (refused.value.revision, refused.value.status) == (1, "lost")

    def test_a_transition_is_judged_last_and_tells_where_the_record_is(self, harness: Harness) -> None:
        states = harness.tenant().states
        fence = harness.tenant().leases.acquire("l", owner="a", ttl_seconds=60).fence
        states.create("r", 1, lifecycle=_ORDERS)
        calls: list[Callable[[], object]] = [
            lambda: states.update(
                "r", 2, expected_revision=1, expected_status="new", status="lost", lifecycle=_ORDERS, fence=fence
            ),
            lambda: states.put("r", 2, status="lost", lifecycle=_ORDERS, fence=fence),
        ]
        for call in calls:
            with pytest.raises(TransitionError) as refused:
                call()
            assert (refused.value.revision, refused.value.status) == (1, "new")
        assert states.require("r").revision == 1
