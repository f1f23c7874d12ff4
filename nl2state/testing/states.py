"""The promises about states."""

from __future__ import annotations

from contextlib import suppress

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
from nl2state.lifecycle import Lifecycle
from nl2state.payload import Value
from nl2state.states import ANY_REVISION, NEVER, StateRecord
from nl2state.testing.harness import Harness, start, start_waiting, together, until

__all__ = ["TestCompareAndSet", "TestPut", "TestReadings", "TestRefusals"]

_ORDERS = Lifecycle(
    initial="new",
    statuses=frozenset({"new", "paid", "shipped"}),
    terminal=frozenset({"shipped"}),
    transitions={"new": frozenset({"paid"}), "paid": frozenset({"shipped"})},
)
_DAY = 86_400.0


class TestCompareAndSet:
    """P2: each successful write raises the revision by exactly 1, and only at the revision that was expected."""

    def test_each_write_raises_the_revision_by_one(self, harness: Harness) -> None:
        states = harness.tenant().states
        revisions = [states.create("r", 0).revision]
        revisions += [states.update("r", n, expected_revision=n).revision for n in range(1, 5)]
        revisions.append(states.delete("r", expected_revision=5))
        assert revisions == [1, 2, 3, 4, 5, 6]

    def test_a_write_at_another_revision_is_refused_and_told(self, harness: Harness) -> None:
        """Case 22: writer 1 stalls, writer 2 saves, writer 1 lands."""
        states = harness.tenant().states
        states.create("r", "first")
        states.update("r", "second", expected_revision=1)
        for write in (
            lambda: states.update("r", "late", expected_revision=1),
            lambda: states.delete("r", expected_revision=1),
            lambda: states.update("r", "early", expected_revision=3),
        ):
            with pytest.raises(RevisionConflictError) as refused:
                write()
            assert (refused.value.revision, refused.value.status) == (2, "created")
        assert states.require("r").value == "second"

    def test_of_many_writers_at_one_revision_one_wins(self, harness: Harness) -> None:
        harness.tenant().states.create("r", None)
        stores = [harness.tenant(client=n % 2).states for n in range(8)]
        outcomes = together(8, lambda n: stores[n].update("r", n, expected_revision=1))
        won = [outcome for outcome in outcomes if isinstance(outcome, StateRecord)]
        told = [outcome for outcome in outcomes if isinstance(outcome, RevisionConflictError)]
        assert (len(won), len(told)) == (1, 7)
        assert harness.tenant().states.require("r").value == won[0].value
        assert {error.revision for error in told} == {2}

    def test_of_many_creations_one_wins(self, harness: Harness) -> None:
        """Case 21: of creates at once one wins."""
        stores = [harness.tenant(client=n % 2).states for n in range(8)]
        outcomes = together(8, lambda n: stores[n].create("r", n))
        assert sum(isinstance(outcome, StateRecord) for outcome in outcomes) == 1
        assert sum(isinstance(outcome, AlreadyExistsError) for outcome in outcomes) == 7

    @pytest.mark.parametrize("end", ["commit", "roll back"])
    def test_a_writer_that_waited_for_another_looks_again(self, harness: Harness, end: str) -> None:
        """Case 22: the same, where writer 1 is on its way already."""
        harness.tenant().states.create("r", "first")
        with suppress(LookupError), harness.tenant().transaction() as tx:
            tx.states.update("r", "second", expected_revision=1)
            late = start_waiting(
                harness, lambda: harness.tenant(client=1).states.update("r", "late", expected_revision=1)
            )
            if end == "roll back":
                raise LookupError
        if end == "commit":
            with pytest.raises(RevisionConflictError) as refused:
                late.result()
            assert refused.value.revision == 2
        else:
            assert late.result().revision == 2

    @pytest.mark.parametrize("end", ["commit", "roll back"])
    def test_a_creation_that_waited_for_another_looks_again(self, harness: Harness, end: str) -> None:
        """Case 21: the same, where one of them is on its way already."""
        with suppress(LookupError), harness.tenant().transaction() as tx:
            tx.states.create("r", "first")
            late = start_waiting(harness, lambda: harness.tenant(client=1).states.create("r", "late"))
            if end == "roll back":
                raise LookupError
        if end == "commit":
            with pytest.raises(AlreadyExistsError):
                late.result()
        else:
            assert late.result().revision == 1

    def test_an_expectation_is_said_aloud(self, harness: Harness) -> None:
        """Case 21: an empty or absent expectation is never "any"."""
        states = harness.tenant().states
        states.create("r", 1)
        for nothing in (0, -1, None, "", "1", 1.0, True):
            with pytest.raises(InvalidInputError) as refused:
                states.update("r", 2, expected_revision=nothing)  # type: ignore[arg-type]  # which is the point
            assert refused.value.field == "expected_revision"
            with pytest.raises(InvalidInputError):
                states.delete("r", expected_revision=nothing)  # type: ignore[arg-type]  # as above
        with pytest.raises(TypeError):
            states.update("r", 2)  # type: ignore[call-arg]  # as above
        assert states.update("r", 2, expected_revision=ANY_REVISION).revision == 2

    def test_any_revision_finds_the_record_absent(self, harness: Harness) -> None:
        states = harness.tenant().states
        with pytest.raises(NotFoundError):
            states.update("r", 1, expected_revision=ANY_REVISION)
        with pytest.raises(NotFoundError):
            states.delete("r", expected_revision=ANY_REVISION)
        with pytest.raises(NotFoundError):
            states.require("r")
        assert states.get("r") is None

    def test_a_record_made_again_goes_on_from_its_last_revision(self, harness: Harness) -> None:
        states = harness.tenant().states
        states.create("deleted", "a")
        states.delete("deleted", expected_revision=1)
        states.create("expired", "a", ttl_seconds=60)
        harness.advance(61)
        for record_id, revision in (("deleted", 3), ("expired", 2)):
            assert states.get(record_id) is None
            assert states.create(record_id, "b").revision == revision
            with pytest.raises(RevisionConflictError):
                states.update(record_id, "of the former life", expected_revision=1)

    def test_a_swept_record_begins_anew(self, harness: Harness) -> None:
        states = harness.tenant().states
        states.create("r", "a")
        states.delete("r", expected_revision=1)
        harness.advance(_DAY + 1)
        assert harness.clients[0].system.retain().states == 1
        assert states.create("r", "b").revision == 1

    def test_an_emptied_row_outlives_a_day_and_no_sweep_before(self, harness: Harness) -> None:
        states = harness.tenant().states
        states.create("r", "a")
        states.delete("r", expected_revision=1)
        harness.advance(_DAY - 1)
        assert harness.clients[0].system.retain().states == 0
        assert states.create("r", "b").revision == 3

    def test_an_expired_record_is_absent_before_it_is_swept(self, harness: Harness) -> None:
        states = harness.tenant().states
        states.create("r", "a", ttl_seconds=60)
        harness.advance(59)
        assert states.require("r").value == "a"
        harness.advance(2)
        assert states.get("r") is None
        with pytest.raises(NotFoundError):
            states.update("r", "b", expected_revision=1)
        with pytest.raises(NotFoundError):
            states.delete("r", expected_revision=1)

    def test_an_update_keeps_sets_or_lifts_the_expiry(self, harness: Harness) -> None:
        states = harness.tenant().states
        created = states.create("r", "a", ttl_seconds=60)
        assert states.update("r", "b", expected_revision=1).expires_at == created.expires_at
        longer = states.update("r", "c", expected_revision=2, ttl_seconds=600)
        assert longer.expires_at is not None
        assert (longer.expires_at - longer.updated_at).total_seconds() == pytest.approx(600, abs=0.1)
        assert states.update("r", "d", expected_revision=3, ttl_seconds=NEVER).expires_at is None


class TestRefusals:
    """P2 and P3: a refusal says the first reason of: fence, absence, revision, terminal status, transition."""

    def test_a_terminal_record_is_not_written_again(self, harness: Harness) -> None:
        states = harness.tenant().states
        states.create("r", "a")
        ended = states.update("r", "b", expected_revision=1, status="succeeded")
        assert ended.is_terminal
        for expected in (2, ANY_REVISION):
            with pytest.raises(TerminalError) as refused:
                states.update("r", "c", expected_revision=expected)
            assert (refused.value.revision, refused.value.status) == (2, "succeeded")
        assert states.require("r").value == "b"

    def test_the_reasons_come_in_their_order(self, harness: Harness) -> None:
        """Case 25: a terminal record is not rewritten with a stale fence or revision, and that is said."""
        states = harness.tenant().states
        states.create("r", "a", status="paid", lifecycle=_ORDERS)
        states.update("r", "b", expected_revision=1, status="shipped", lifecycle=_ORDERS)
        lost = Fence("nothing", "nobody", 1)
        with pytest.raises(FencingRejectedError):
            states.update("r", "c", expected_revision=1, fence=lost)
        with pytest.raises(RevisionConflictError):
            states.update("r", "c", expected_revision=1, status="new", lifecycle=_ORDERS)
        with pytest.raises(TerminalError):
            states.update("r", "c", expected_revision=2, status="new", lifecycle=_ORDERS)

    def test_a_transition_that_the_lifecycle_lacks_is_refused(self, harness: Harness) -> None:
        states = harness.tenant().states
        assert states.create("r", "a", lifecycle=_ORDERS).status == "new"
        with pytest.raises(TransitionError) as refused:
            states.update("r", "b", expected_revision=1, status="shipped", lifecycle=_ORDERS)
        assert (refused.value.revision, refused.value.status) == (1, "new")
        assert states.update("r", "b", expected_revision=1, status="new", lifecycle=_ORDERS).revision == 2
        assert states.update("r", "c", expected_revision=2, status="paid", lifecycle=_ORDERS).status == "paid"
        with pytest.raises(InvalidInputError):
            states.update("r", "d", expected_revision=3, status="lost", lifecycle=_ORDERS)

    def test_an_expected_status_is_compared_too(self, harness: Harness) -> None:
        states = harness.tenant().states
        states.create("r", "a")
        with pytest.raises(RevisionConflictError):
            states.update("r", "b", expected_revision=1, expected_status="running")
        assert states.update("r", "b", expected_revision=1, expected_status="created", status="running").revision == 2

    def test_a_creation_says_what_is_there(self, harness: Harness) -> None:
        states = harness.tenant().states
        states.create("r", "a", status="running")
        with pytest.raises(AlreadyExistsError) as refused:
            states.create("r", "b")
        assert (refused.value.revision, refused.value.status) == (1, "running")

    def test_what_a_write_returns_is_what_is_read_back(self, harness: Harness) -> None:
        states = harness.tenant().states
        value: Value = {"zero": "\u0000", "large": 2**63, "empty": [{}, [], "", None], "ü": 0.1}
        written = states.create("r", value, schema_version=3, request_id="q-1", parent_id="p-1", ttl_seconds=9.5)
        assert states.get("r") == written
        again = states.update("r", b"\x00\xff", expected_revision=1, request_id="q-2", status="waiting")
        assert states.get("r") == again
        assert (again.schema_version, again.parent_id, again.request_id) == (3, "p-1", "q-2")
        assert again.created_at == written.created_at <= again.updated_at


class TestPut:
    """P2 and P3: a put writes whatever is there, and raises the revision by exactly 1; a terminal record stays."""

    def test_it_makes_a_record_and_replaces_it_at_any_revision(self, harness: Harness) -> None:
        states = harness.tenant().states
        made = states.put("r", "a")
        assert (made.revision, made.status, made.value) == (1, "created", "a")
        states.update("r", "b", expected_revision=1)
        harness.advance(1)
        replaced = harness.tenant(client=1).states.put("r", "c")
        assert (replaced.revision, replaced.value) == (3, "c")
        assert states.get("r") == replaced
        assert replaced.created_at == made.created_at < replaced.updated_at

    def test_it_replaces_all_but_the_status_of_a_record_that_is_there(self, harness: Harness) -> None:
        states = harness.tenant().states
        states.create("r", 1, status="running", ttl_seconds=60, schema_version=3, request_id="q-1", parent_id="p-1")
        replaced = states.put("r", 2)
        assert states.get("r") == replaced
        assert replaced.status == "running"
        assert replaced.schema_version == 1
        assert (replaced.request_id, replaced.parent_id, replaced.expires_at) == (None, None, None)
        given = states.put("r", 3, status="waiting", ttl_seconds=60, schema_version=4, request_id="q", parent_id="p")
        assert states.get("r") == given
        assert (given.status, given.schema_version, given.request_id, given.parent_id) == ("waiting", 4, "q", "p")
        assert given.expires_at is not None
        assert (given.expires_at - given.updated_at).total_seconds() == pytest.approx(60, abs=0.1)

    def test_it_goes_on_from_a_former_life_and_keeps_nothing_else_of_it(self, harness: Harness) -> None:
        states = harness.tenant().states
        former = states.create("deleted", "a", status="running")
        states.delete("deleted", expected_revision=1)
        states.create("expired", "a", status="succeeded", ttl_seconds=60)
        harness.advance(61)
        for record_id, revision in (("deleted", 3), ("expired", 2)):
            made = states.put(record_id, "b")
            assert (made.revision, made.status, made.is_terminal) == (revision, "created", False)
            assert made.created_at == made.updated_at > former.created_at
            assert states.get(record_id) == made
            with pytest.raises(RevisionConflictError):
                states.update(record_id, "of the former life", expected_revision=1)

    def test_of_many_that_put_each_raises_the_revision(self, harness: Harness) -> None:
        stores = [harness.tenant(client=n % 2).states for n in range(8)]
        outcomes = together(8, lambda n: stores[n].put("r", n))
        written = [outcome for outcome in outcomes if isinstance(outcome, StateRecord)]
        assert sorted(record.revision for record in written) == list(range(1, 9))
        last = max(written, key=lambda record: record.revision)
        assert harness.tenant().states.require("r").value == last.value

    def test_a_terminal_record_is_not_replaced_until_it_is_gone(self, harness: Harness) -> None:
        states = harness.tenant().states
        ended = states.put("r", "a", status="succeeded")
        assert ended.is_terminal
        for status in (None, "succeeded", "running"):
            with pytest.raises(TerminalError) as refused:
                states.put("r", "b", status=status)
            assert (refused.value.revision, refused.value.status) == (1, "succeeded")
        assert states.get("r") == ended
        states.delete("r", expected_revision=1)
        assert states.put("r", "b").revision == 3

    def test_it_ends_a_record(self, harness: Harness) -> None:
        states = harness.tenant().states
        states.put("r", "a")
        assert states.put("r", "b", status="failed").is_terminal
        harness.advance(61)
        assert harness.clients[0].system.retain(terminal_age_seconds=60).states == 1

    def test_a_transition_that_the_lifecycle_lacks_is_refused(self, harness: Harness) -> None:
        states = harness.tenant().states
        assert states.put("made", "a", status="paid", lifecycle=_ORDERS).status == "paid"
        assert states.put("r", "a", lifecycle=_ORDERS).status == "new"
        with pytest.raises(TransitionError) as refused:
            states.put("r", "b", status="shipped", lifecycle=_ORDERS)
        assert (refused.value.revision, refused.value.status) == (1, "new")
        assert states.put("r", "c", lifecycle=_ORDERS).revision == 2
        assert states.put("r", "d", status="paid", lifecycle=_ORDERS).status == "paid"
        with pytest.raises(InvalidInputError):
            states.put("r", "e", status="lost", lifecycle=_ORDERS)

    def test_the_fence_is_judged_before_all_else(self, harness: Harness) -> None:
        tenant = harness.tenant()
        fence = tenant.leases.acquire("l", owner="a", ttl_seconds=60).fence
        assert tenant.states.put("r", "a", fence=fence).revision == 1
        assert tenant.states.put("r", "b", fence=fence, status="succeeded").revision == 2
        with pytest.raises(TerminalError):
            tenant.states.put("r", "c", fence=fence)
        tenant.leases.release(fence)
        for record_id in ("r", "new"):
            with pytest.raises(FencingRejectedError):
                tenant.states.put(record_id, "c", fence=fence)
        assert tenant.states.get("new") is None

    def test_a_refusal_in_a_transaction_keeps_no_lock(self, harness: Harness) -> None:
        tenant = harness.tenant()
        tenant.states.put("r", "a", status="succeeded")
        with tenant.transaction() as tx:
            with pytest.raises(TerminalError):
                tx.states.put("r", "b")
            deletion = start(lambda: harness.tenant(client=1).states.delete("r", expected_revision=1))
            until(lambda: deletion.done or harness.waiting() > 0, "the deletion ends")
            assert harness.waiting() == 0
            assert tx.states.put("r", "b").revision == deletion.result() + 1

    @pytest.mark.parametrize("end", ["commit", "roll back"])
    def test_one_that_waited_for_another_write_looks_again(self, harness: Harness, end: str) -> None:
        harness.tenant().states.put("r", "first")
        with suppress(LookupError), harness.tenant().transaction() as tx:
            tx.states.put("r", "ended", status="succeeded")
            late = start_waiting(harness, lambda: harness.tenant(client=1).states.put("r", "late"))
            if end == "roll back":
                raise LookupError
        if end == "commit":
            with pytest.raises(TerminalError):
                late.result()
        else:
            assert late.result().revision == 2


class TestReadings:
    """P2: what tells how a record stands without its value, and whether a write was the last."""

    def test_a_revision_is_that_of_a_record_that_is_there(self, harness: Harness) -> None:
        states = harness.tenant().states
        assert states.get_revision("r") is None
        states.create("r", "a", ttl_seconds=60)
        states.update("r", "b", expected_revision=1, status="succeeded")
        assert states.get_revision("r") == 2
        assert harness.tenant("other").states.get_revision("r") is None
        harness.advance(61)
        assert states.get_revision("r") is None
        states.put("r", "c")
        states.delete("r", expected_revision=3)
        assert states.get_revision("r") is None

    def test_a_checkpoint_is_the_record_that_this_request_wrote_last(self, harness: Harness) -> None:
        states = harness.tenant().states
        assert states.get_checkpoint("r", "q-1") is None
        written = states.create("r", "a", request_id="q-1")
        assert states.get_checkpoint("r", "q-1") == written
        assert harness.tenant("other").states.get_checkpoint("r", "q-1") is None
        again = states.update("r", "b", expected_revision=1, request_id="q-2")
        assert states.get_checkpoint("r", "q-1") is None
        assert states.get_checkpoint("r", "q-2") == again
        states.update("r", "c", expected_revision=2, ttl_seconds=60)
        assert states.get_checkpoint("r", "q-2") is None
        states.put("r", "d", request_id="q-3", ttl_seconds=60)
        harness.advance(61)
        assert states.get_checkpoint("r", "q-3") is None
        with pytest.raises(InvalidInputError) as refused:
            states.get_checkpoint("r", "")
        assert refused.value.field == "request_id"
