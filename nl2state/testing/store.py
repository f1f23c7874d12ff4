"""The promises about transactions."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator

import pytest

from nl2state.errors import AlreadyExistsError, RevisionConflictError, StoreUnavailableError, UsageError
from nl2state.idempotency import Attempt
from nl2state.leases import Fence
from nl2state.store import Transaction
from nl2state.testing.harness import Harness, start, until

__all__ = ["TestAtomicity"]


class TestAtomicity:
    """P9: a transaction is all or nothing; a call that raised left nothing behind."""

    def test_all_nouns_commit_together(self, harness: Harness) -> None:
        tenant, other = harness.tenant(), harness.tenant(client=1)
        fence = tenant.leases.acquire("r", owner="a", ttl_seconds=60).fence
        attempt = _attempt(harness)
        with tenant.transaction(fence=fence) as tx:
            tx.states.create("s", 1)
            tx.states.create("t", 2)
            tx.idempotency.complete(attempt, "done")
            tx.leases.release(fence)
            assert tx.states.require("s").value == 1
            assert (other.states.get("s"), other.states.get("t")) == (None, None)
            assert other.leases.try_acquire("r", owner="b", ttl_seconds=60) is None
        assert (other.states.require("s").value, other.states.require("t").value) == (1, 2)
        assert other.leases.try_acquire("r", owner="b", ttl_seconds=60) is not None
        record = other.idempotency.get("k")
        assert record is not None
        assert record.outcome == "done"

    def test_all_nouns_are_undone_together(self, harness: Harness) -> None:
        tenant, other = harness.tenant(), harness.tenant(client=1)
        fence = tenant.leases.acquire("r", owner="a", ttl_seconds=60).fence
        attempt = _attempt(harness)
        with pytest.raises(LookupError), tenant.transaction(fence=fence) as tx:
            tx.states.create("s", 1)
            tx.idempotency.complete(attempt, "undone")
            tx.idempotency.forget("k")
            tx.leases.release(fence)
            raise LookupError
        assert other.states.get("s") is None
        assert other.leases.renew(fence).fence == fence
        tenant.idempotency.complete(attempt, "done")

    def test_a_refusal_leaves_the_transaction_usable_and_nothing_behind(self, harness: Harness) -> None:
        tenant = harness.tenant()
        tenant.states.create("s", 1)
        with tenant.transaction() as tx:
            tx.states.create("t", 1)
            with pytest.raises(AlreadyExistsError):
                tx.states.create("s", 2)
            with pytest.raises(RevisionConflictError):
                tx.states.update("s", 2, expected_revision=7)
            tx.states.update("s", 3, expected_revision=1)
        assert tenant.states.require("s").value == 3
        assert tenant.states.require("t").value == 1

    def test_a_refusal_that_is_not_caught_undoes_all(self, harness: Harness) -> None:
        tenant = harness.tenant()
        tenant.states.create("s", 1)
        with pytest.raises(AlreadyExistsError), tenant.transaction() as tx:
            tx.states.create("t", 1)
            tx.states.create("s", 2)
        assert tenant.states.get("t") is None

    def test_a_savepoint_is_undone_alone(self, harness: Harness) -> None:
        tenant = harness.tenant()
        with tenant.transaction() as tx:
            tx.states.create("outer", 1)
            with pytest.raises(LookupError), tx.transaction() as inner:
                inner.states.create("undone", 1)
                with inner.transaction() as innermost:
                    innermost.states.create("undone too", 1)
                raise LookupError
            with tx.transaction() as inner:
                inner.states.create("kept", 1)
            assert tx.states.get("undone") is None
        assert [tenant.states.get(name) is None for name in ("outer", "kept", "undone", "undone too")] == [
            False,
            False,
            True,
            True,
        ]

    def test_calls_after_the_commit_run_once_in_order_and_only_then(self, harness: Harness) -> None:
        tenant = harness.tenant()
        ran: list[str] = []
        with tenant.transaction() as tx:
            tx.after_commit(lambda: ran.append("first"))
            with pytest.raises(LookupError), tx.transaction() as inner:
                inner.after_commit(lambda: ran.append("undone"))
                raise LookupError
            with tx.transaction() as inner:
                inner.states.create("s", 1)
                inner.after_commit(lambda: ran.append(f"sees {harness.tenant(client=1).states.require('s').value!r}"))
            assert ran == []
        assert ran == ["first", "sees 1"]
        with pytest.raises(LookupError), tenant.transaction() as tx:
            tx.after_commit(lambda: ran.append("never"))
            raise LookupError
        assert ran == ["first", "sees 1"]

    def test_all_calls_after_the_commit_run_though_one_raises(self, harness: Harness) -> None:
        tenant = harness.tenant()
        ran: list[str] = []

        def fail() -> None:
            raise LookupError

        with pytest.raises(LookupError), tenant.transaction() as tx:
            tx.states.create("s", 1)
            tx.after_commit(fail)
            tx.after_commit(lambda: ran.append("second"))
        assert ran == ["second"]
        assert tenant.states.require("s").value == 1
        with pytest.raises(ExceptionGroup) as raised, tenant.transaction() as tx:
            tx.after_commit(fail)
            tx.after_commit(fail)
        assert len(raised.value.exceptions) == 2

    def test_leases_can_only_be_released_in_a_transaction(self, harness: Harness) -> None:
        tenant = harness.tenant()
        fence = tenant.leases.acquire("r", owner="a", ttl_seconds=60).fence
        with tenant.transaction() as tx:
            calls: list[Callable[[], object]] = [
                lambda: tx.leases.acquire("q", owner="a", ttl_seconds=60),
                lambda: tx.leases.try_acquire("q", owner="a", ttl_seconds=60),
                lambda: tx.leases.renew(fence),
                lambda: tx.leases.revoke("r"),
                lambda: tx.idempotency.reserve("k", request=1, result_ttl_seconds=60, attempt_ttl_seconds=60),
                lambda: tenant.hold("q", owner="a").__enter__(),
            ]
            for call in calls:
                with pytest.raises(UsageError):
                    call()
            tx.leases.release(fence)
        with tenant.hold("q", owner="a"):
            pass

    def test_a_transaction_that_ended_is_not_used_again(self, harness: Harness) -> None:
        kept: list[Transaction] = []
        with harness.tenant().transaction() as tx:
            kept.append(tx)
        with pytest.raises(UsageError):
            kept[0].states.create("s", 1)
        with pytest.raises(UsageError):
            kept[0].after_commit(lambda: None)
        with pytest.raises(UsageError), kept[0].transaction():
            pass
        assert harness.tenant().states.get("s") is None

    def test_a_transaction_is_used_by_the_thread_that_opened_it(self, harness: Harness) -> None:
        with harness.tenant().transaction() as tx:
            call = start(lambda: tx.states.create("s", 1))
            with pytest.raises(UsageError):
                call.result()

    def test_a_fenced_transaction_takes_no_other_fence(self, harness: Harness) -> None:
        tenant = harness.tenant()
        fence = tenant.leases.acquire("r", owner="a", ttl_seconds=60).fence
        with tenant.transaction(fence=fence) as tx:
            assert tx.states.create("s", 1, fence=fence).revision == 1
            with pytest.raises(UsageError):
                tx.states.create("t", 1, fence=Fence("r", "a", fence.token + 1))

    def test_two_transactions_of_one_thread_are_two(self, harness: Harness) -> None:
        tenant = harness.tenant()
        with tenant.transaction() as one, pytest.raises(LookupError), tenant.transaction() as two:
            one.states.create("one", 1)
            two.states.create("two", 1)
            raise LookupError
        assert tenant.states.require("one").value == 1
        assert tenant.states.get("two") is None

    @pytest.mark.usefixtures("interruptible")
    def test_a_call_that_is_interrupted_leaves_a_store_that_works(self, harness: Harness) -> None:
        """A Ctrl-C while a call waits: it raises, and keeps neither a lock nor a connection."""
        tenant, other = harness.tenant(), harness.tenant(client=1)
        tenant.states.create("s", 1)

        def interrupt() -> None:
            until(lambda: harness.waiting() == 1, "the call waits")
            os.kill(os.getpid(), signal.SIGINT)

        with other.transaction() as tx:
            tx.states.update("s", 2, expected_revision=1)
            helper = start(interrupt)
            with pytest.raises(KeyboardInterrupt):
                tenant.states.update("s", 3, expected_revision=1)
            helper.result()
        assert tenant.states.require("s").value == 2
        assert tenant.states.update("s", 4, expected_revision=2).revision == 3

    @pytest.mark.usefixtures("interruptible")
    def test_a_transaction_one_of_whose_calls_was_interrupted_is_not_committed(self, harness: Harness) -> None:
        """As when a time limit of the service's raises from a signal's handler, and the body goes on."""
        tenant, other = harness.tenant(), harness.tenant(client=1)
        tenant.states.create("s", 1)

        def interrupt() -> None:
            until(lambda: harness.waiting() == 1, "the call waits")
            os.kill(os.getpid(), signal.SIGINT)

        with other.transaction() as blocker:
            blocker.states.update("s", 2, expected_revision=1)
            with pytest.raises(StoreUnavailableError), tenant.transaction() as tx:
                tx.states.create("t", 1)
                helper = start(interrupt)
                with pytest.raises(KeyboardInterrupt):
                    tx.states.update("s", 3, expected_revision=1)
                helper.result()
                with pytest.raises(UsageError):
                    tx.states.get("t")
        assert tenant.states.get("t") is None
        assert tenant.states.require("s").value == 2

    def test_a_transaction_is_ended_by_the_thread_that_opened_it(self, harness: Harness) -> None:
        block = harness.tenant().transaction()
        block.__enter__().states.create("s", 1)
        call = start(lambda: block.__exit__(None, None, None))
        with pytest.raises(UsageError):
            call.result()
        assert harness.tenant().states.get("s") is None
        with harness.tenant().hold("r", owner="a"):
            pass

    @pytest.fixture
    def interruptible(self) -> Iterator[None]:
        """Let SIGINT interrupt, though a shell that runs the tests in the background has it ignored."""
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        yield
        signal.signal(signal.SIGINT, before)


def _attempt(harness: Harness) -> Attempt:
    return harness.tenant().idempotency.reserve("k", request=1, result_ttl_seconds=60, attempt_ttl_seconds=60).attempt
