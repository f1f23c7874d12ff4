"""The promises about the tokens of leases."""

from __future__ import annotations

from nl2state.leases import Fence
from nl2state.testing.harness import Harness

__all__ = ["TestMonotonicTokens"]

_DAY = 86_400.0


class TestMonotonicTokens:
    """P5: every grant's token is greater than every earlier one's of its resource."""

    def test_tokens_rise_over_release_expiry_revocation_and_sweeping(self, harness: Harness) -> None:
        """Case 14: whatever ends a grant, and whether its row is cleaned up, the next token is greater."""
        leases = harness.tenant().leases
        tokens = []

        def grant() -> Fence:
            fence = leases.acquire("r", owner="a", ttl_seconds=60).fence
            tokens.append(fence.token)
            return fence

        leases.release(grant())
        grant()
        harness.advance(61)
        grant()
        leases.revoke("r")
        leases.release(grant())
        harness.advance(_DAY + 1)
        assert harness.clients[0].system.retain().leases == 1
        grant()
        harness.advance(_DAY + 61)
        assert harness.clients[0].system.retain().leases == 1
        grant()
        assert tokens == sorted(set(tokens))
        assert tokens[-1] < 2**53

    def test_tokens_rise_within_one_millisecond(self, harness: Harness) -> None:
        leases = harness.tenant().leases
        tokens = []
        for _ in range(50):
            lease = leases.acquire("r", owner="a", ttl_seconds=60)
            leases.release(lease.fence)
            tokens.append(lease.fence.token)
        assert tokens == sorted(set(tokens))

    def test_tokens_rise_though_the_clock_steps_back(self, harness: Harness) -> None:
        leases = harness.tenant().leases
        before = leases.acquire("r", owner="a", ttl_seconds=60)
        leases.release(before.fence)
        harness.advance(-7_200)
        after = leases.acquire("r", owner="b", ttl_seconds=60)
        assert after.fence.token > before.fence.token
        harness.advance(61)  # it is over, and the clock is not yet where the first token was given
        taken = leases.acquire("r", owner="c", ttl_seconds=60)
        assert taken.taken_over
        assert taken.fence.token > after.fence.token
        leases.revoke("r")
        assert leases.acquire("r", owner="d", ttl_seconds=60).fence.token > taken.fence.token

    def test_a_lease_that_came_free_is_kept_for_a_day(self, harness: Harness) -> None:
        leases = harness.tenant().leases
        leases.release(leases.acquire("r", owner="a", ttl_seconds=60).fence)
        harness.advance(_DAY - 1)
        assert harness.clients[0].system.retain().leases == 0
