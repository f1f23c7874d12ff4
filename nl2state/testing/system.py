"""The promises about what crosses tenants."""

from __future__ import annotations

import pytest

from nl2state.errors import RevisionConflictError
from nl2state.store import Retained
from nl2state.testing.harness import Harness

__all__ = ["TestRetention"]

_DAY = 86_400.0


class TestRetention:
    """P11: clean-up comes in pages that read a bounded number of rows, skips what is locked, and reaches all."""

    def test_page_after_page_removes_all_that_is_due_and_nothing_else(self, harness: Harness) -> None:
        system = harness.clients[0].system
        for name in ("one", "two", "three"):
            tenant = harness.tenant(name)
            for number in range(5):
                tenant.states.delete(tenant.states.create(f"s{number}", 1).id, expected_revision=1)
                tenant.states.create(f"e{number}", 1, ttl_seconds=60)
                tenant.leases.acquire(f"r{number}", owner="a", ttl_seconds=60)
                tenant.idempotency.reserve(f"k{number}", request=1, result_ttl_seconds=60, attempt_ttl_seconds=60)
                tenant.leases.acquire(f"kept{number}", owner="a", ttl_seconds=3 * _DAY)
            tenant.states.create("kept", 1)
        harness.advance(_DAY + 61)
        pages = [system.retain(limit=3)]
        while pages[-1].after is not None:
            pages.append(system.retain(limit=3, after=pages[-1].after))
        assert sum(page.states for page in pages) == 30
        assert sum(page.leases for page in pages) == sum(page.idempotency for page in pages) == 15
        assert max(max(page.states, page.leases, page.idempotency) for page in pages) == 3
        assert len(pages) < 60
        assert harness.tenant("two").states.get_revision("kept") == 1
        assert len(harness.tenant("two").leases.list().items) == 5
        assert system.retain() == Retained(0, 0, 0, None)

    def test_rows_that_are_not_due_are_read_page_by_page_too(self, harness: Harness) -> None:
        """A scope of many live keys costs each call a page, and is got through: what is due behind them is reached."""
        tenant, system = harness.tenant(), harness.clients[0].system
        tenant.idempotency.reserve("z", request=1, result_ttl_seconds=60, attempt_ttl_seconds=60)
        harness.advance(_DAY + 61)
        for number in range(10):
            tenant.idempotency.reserve(f"k{number}", request=1, result_ttl_seconds=60, attempt_ttl_seconds=60)
        removed, page = [], system.retain(limit=4)
        while page.after is not None:
            removed.append(page.idempotency)
            page = system.retain(limit=4, after=page.after)
        assert [*removed, page.idempotency] == [0, 0, 1]

    def test_every_scope_is_reached_however_many_there_are(self, harness: Harness) -> None:
        """A call looks at a bounded number of them, and says where the next one goes on."""
        for number in range(103):
            keys = harness.tenant(f"tenant {number}").idempotency
            keys.reserve("k", request=1, result_ttl_seconds=60, attempt_ttl_seconds=60)
        harness.advance(_DAY + 61)
        system = harness.clients[0].system
        pages = [system.retain()]
        while pages[-1].after is not None:
            pages.append(system.retain(after=pages[-1].after))
        assert sum(page.idempotency for page in pages) == 103
        assert len(pages) < 110

    def test_a_row_that_is_locked_is_left_for_another_time(self, harness: Harness) -> None:
        tenant, system = harness.tenant(), harness.client(1).system
        attempt = tenant.idempotency.reserve(
            "k", request=1, result_ttl_seconds=_DAY * 3, attempt_ttl_seconds=60
        ).attempt
        fence = tenant.leases.acquire("r", owner="a", ttl_seconds=60).fence
        tenant.states.create("s", 1, status="succeeded")
        with tenant.transaction() as tx:
            tx.states.delete("s", expected_revision=1)
            tx.states.create("t", 1, fence=fence)
            tx.idempotency.abandon(attempt)
            harness.advance(_DAY * 4)
            page = system.retain(terminal_age_seconds=60)
            assert (page.states, page.leases, page.idempotency, harness.waiting()) == (0, 0, 0, 0)
        page = system.retain(terminal_age_seconds=60)
        assert (page.leases, page.idempotency) == (1, 1)

    def test_a_pass_ends_past_a_record_that_is_locked_and_the_next_one_removes_it(self, harness: Harness) -> None:
        """One that is due first and locked all the while keeps nothing behind it, and is not tried for ever."""
        tenant, system = harness.tenant(), harness.client(1).system
        for number in range(5):
            tenant.states.create(f"s{number}", 1, ttl_seconds=60)
            tenant.states.create(f"ended{number}", 1, status="succeeded")
        with tenant.transaction() as tx:
            tx.states.update("s0", 2, expected_revision=1)
            tx.states.delete("ended0", expected_revision=1)
            harness.advance(_DAY * 2)
            pages = [system.retain(terminal_age_seconds=60, limit=1)]
            while pages[-1].after is not None:
                pages.append(system.retain(terminal_age_seconds=60, limit=1, after=pages[-1].after))
            assert (sum(page.states for page in pages), harness.waiting()) == (8, 0)
            assert len(pages) < 30
        assert system.retain(terminal_age_seconds=60).states == 2
        assert system.retain(terminal_age_seconds=60).states == 0

    def test_retention_of_ended_records_lets_no_writer_of_their_life_in(self, harness: Harness) -> None:
        states, system = harness.tenant().states, harness.clients[0].system
        states.create("r", "a")
        states.create("other", "a")
        states.update("r", "b", expected_revision=1, status="succeeded")
        harness.advance(61)
        assert system.retain(terminal_age_seconds=62).states == 0
        assert system.retain(terminal_age_seconds=60).states == 1
        assert states.get("r") is None
        assert states.require("other").revision == 1
        assert states.create("r", "c").revision == 4
        with pytest.raises(RevisionConflictError):
            states.update("r", "late", expected_revision=1)
        states.delete("r", expected_revision=4)
        harness.advance(_DAY + 1)
        assert system.retain(terminal_age_seconds=60).states == 1
        assert states.create("r", "d").revision == 1
