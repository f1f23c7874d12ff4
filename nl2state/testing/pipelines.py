"""The promises about pipelines: writes of a transaction that are made together when their block ends."""

from __future__ import annotations

from typing import Any

import pytest

from nl2state.errors import (
    AlreadyExistsError,
    FencingRejectedError,
    InvalidInputError,
    NotFoundError,
    PayloadError,
    RevisionConflictError,
    UsageError,
)
from nl2state.leases import Fence
from nl2state.lifecycle import Lifecycle
from nl2state.states import ANY_REVISION
from nl2state.testing.harness import Harness

__all__ = ["TestPipelines"]

_DOOR = Lifecycle(initial="open", statuses=frozenset({"open", "shut"}), transitions={"open": frozenset({"shut"})})


def _reserved(harness: Harness, key: str) -> Any:
    return harness.tenant().idempotency.reserve(key, request=1, result_ttl_seconds=600, attempt_ttl_seconds=600).attempt


class TestPipelines:
    """P9: all of a pipeline's writes are made, or none; each is refused as its own call would be."""

    def test_what_is_collected_is_made_at_the_end_of_the_block_in_its_order(self, harness: Harness) -> None:
        tenant, other = harness.tenant(), harness.tenant(client=1)
        tenant.states.create("updated", 0)
        tenant.states.create("deleted", 0)
        fence = tenant.leases.acquire("r", owner="a", ttl_seconds=600).fence
        done, given_up, dropped = (_reserved(harness, key) for key in ("done", "given up", "dropped"))
        with tenant.transaction() as tx:
            with tx.pipeline() as pipeline:
                pipeline.states.create("created", {"n": 1}, status="running", ttl_seconds=60)
                pipeline.states.update("updated", 1, expected_revision=1)
                pipeline.states.update("updated", 2, expected_revision=2, status="succeeded")
                pipeline.states.put("put", b"bytes")
                pipeline.states.delete("deleted", expected_revision=ANY_REVISION)
                pipeline.idempotency.complete(done, {"done": True})
                pipeline.idempotency.abandon(given_up)
                pipeline.idempotency.forget("dropped")
                pipeline.leases.release(fence)
                assert tx.states.get("created") is None
                assert tx.states.require("updated").value == 0
            assert tx.states.require("updated").value == 2
            assert other.states.require("updated").value == 0
        created, updated = other.states.require("created"), other.states.require("updated")
        assert (created.value, created.status, created.revision) == ({"n": 1}, "running", 1)
        assert created.expires_at is not None
        assert (updated.value, updated.status, updated.revision) == (2, "succeeded", 3)
        assert other.states.require("put").value == b"bytes"
        assert other.states.get("deleted") is None
        assert other.leases.inspect("r") is None
        record = other.idempotency.get("done")
        assert record is not None
        assert record.outcome == {"done": True}
        assert other.idempotency.get("given up") is None
        assert other.idempotency.get("dropped") is None
        with pytest.raises(FencingRejectedError):
            tenant.idempotency.complete(dropped, 1)

    def test_a_refusal_undoes_the_others_and_leaves_the_transaction_usable(self, harness: Harness) -> None:
        tenant = harness.tenant()
        tenant.states.create("there", 0)
        with tenant.transaction() as tx:
            tx.states.create("before", 0)
            with pytest.raises(AlreadyExistsError) as raised, tx.pipeline() as pipeline:
                pipeline.states.create("first", 0)
                pipeline.states.create("there", 1)
                pipeline.states.update("nowhere", 1, expected_revision=1)
            assert (raised.value.index, raised.value.revision) == (1, 1)
            assert tx.states.get("first") is None
            tx.states.create("after", 0)
        assert tenant.states.list_ids().items == ("after", "before", "there")

    @pytest.mark.parametrize(
        ("error", "position"),
        [(NotFoundError, ("nowhere", 1)), (RevisionConflictError, ("there", 7))],
    )
    def test_each_is_refused_as_its_own_call_is(
        self, harness: Harness, error: type[Exception], position: tuple[str, int]
    ) -> None:
        tenant = harness.tenant()
        tenant.states.create("there", 0)
        record_id, revision = position
        with pytest.raises(error), tenant.transaction() as tx, tx.pipeline() as pipeline:
            pipeline.states.create("first", 0)
            pipeline.states.update(record_id, 1, expected_revision=revision)
        assert tenant.states.list_ids().items == ("there",)

    def test_all_of_a_pipeline_s_writes_carry_the_fence_of_their_transaction(self, harness: Harness) -> None:
        """P6: one that was lost refuses all of them, at the block's end."""
        tenant, other = harness.tenant(), harness.tenant(client=1)
        fence = tenant.leases.acquire("r", owner="a", ttl_seconds=60).fence
        with tenant.transaction(fence=fence) as tx, tx.pipeline() as pipeline:
            pipeline.states.create("held", 0)
        harness.advance(61)
        successor = other.leases.acquire("r", owner="b", ttl_seconds=60).fence
        late = tenant.transaction(fence=fence)
        with pytest.raises(FencingRejectedError) as raised, late as tx, tx.pipeline() as pipeline:
            pipeline.states.create("late", 0)
            pipeline.states.put("later", 0)
        assert raised.value.index == 0
        assert tenant.states.list_ids().items == ("held",)
        with tenant.transaction() as tx, tx.pipeline() as pipeline:
            pipeline.states.create("theirs", 0, fence=successor)
        assert tenant.states.list_ids().items == ("held", "theirs")

    def test_an_argument_is_checked_and_a_value_taken_when_it_is_collected(self, harness: Harness) -> None:
        tenant = harness.tenant()
        value: dict[str, Any] = {"n": [1]}
        with tenant.transaction() as tx, tx.pipeline() as pipeline:
            pipeline.states.create("s", value)
            value["n"].append(2)
            with pytest.raises(PayloadError):
                pipeline.states.create("t", {"n": {1, 2}})  # type: ignore[dict-item]  # what is refused
            with pytest.raises(InvalidInputError):
                pipeline.states.create("", 1)
            with pytest.raises(InvalidInputError):
                pipeline.states.create("u", 1, status="ajar", lifecycle=_DOOR)
        assert tenant.states.list_ids().items == ("s",)
        assert tenant.states.require("s").value == {"n": [1]}

    def test_a_value_is_taken_as_it_was_also_where_another_is_refused(self, harness: Harness) -> None:
        """What is made one by one, to tell the refusal, is what was collected."""
        tenant = harness.tenant()
        value: dict[str, Any] = {"n": [1]}
        tenant.states.create("s", 0)
        with tenant.transaction() as tx:
            with pytest.raises(RevisionConflictError) as raised, tx.pipeline() as pipeline:
                pipeline.states.update("s", value, expected_revision=1)
                value["n"].append(object())  # which would be refused first
                pipeline.states.update("s", 1, expected_revision=1)
            assert raised.value.index == 1

    def test_a_block_that_raises_makes_none_and_an_empty_one_does_nothing(self, harness: Harness) -> None:
        tenant = harness.tenant()
        with tenant.transaction() as tx:
            with pytest.raises(LookupError), tx.pipeline() as pipeline:
                pipeline.states.create("s", 1)
                raise LookupError
            with tx.pipeline():
                pass
        assert tenant.states.list_ids().items == ()

    def test_a_savepoint_undoes_a_pipeline_within_it(self, harness: Harness) -> None:
        tenant = harness.tenant()
        with tenant.transaction() as tx:
            with pytest.raises(LookupError), tx.transaction() as inner:
                with inner.pipeline() as pipeline:
                    pipeline.states.create("undone", 1)
                raise LookupError
            with tx.pipeline() as pipeline:
                pipeline.states.create("kept", 1)
        assert tenant.states.list_ids().items == ("kept",)

    def test_a_pipeline_has_no_calls_whose_results_are_waited_for(self, harness: Harness) -> None:
        tenant = harness.tenant()
        with tenant.transaction() as tx, tx.pipeline() as pipeline:
            for noun, call in (("states", "get"), ("states", "create_many"), ("leases", "acquire")):
                with pytest.raises(AttributeError):
                    getattr(getattr(pipeline, noun), call)

    def test_a_pipeline_is_over_with_its_transaction(self, harness: Harness) -> None:
        with harness.tenant().transaction() as tx:
            pass
        with pytest.raises(UsageError), tx.pipeline() as pipeline:
            pipeline.states.create("s", 1)
        assert harness.tenant().states.get("s") is None

    def test_what_is_called_after_a_pipeline_s_block_is_refused_and_not_lost(self, harness: Harness) -> None:
        """P9: nobody would make it, and nobody would tell."""
        with harness.tenant().transaction() as tx:
            with tx.pipeline() as ended:
                ended.states.create("s", 1)
            with pytest.raises(LookupError), tx.pipeline() as failed:
                raise LookupError
            for pipeline in (ended, failed):
                with pytest.raises(UsageError):
                    pipeline.states.create("late", 1)
        with pytest.raises(UsageError):
            ended.leases.release(Fence("r", "a", 1))
        assert harness.tenant().states.list_ids().items == ("s",)
