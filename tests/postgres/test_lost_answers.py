"""What becomes of a call when its connection is lost before its answer came. The proxy makes it so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import Mock

import pytest

from nl2state import (
    ANY_REVISION,
    Attempt,
    Fence,
    OutcomeUnknownError,
    StoreTimeoutError,
    StoreUnavailableError,
    Tenant,
    TenantScope,
)
from nl2state.testing.harness import start, until
from nl2state_postgres import PostgresStore
from tests.proxy import Proxy
from tests.servers import PostgresHarness

SCOPE = TenantScope.derive("acme", pepper="the pepper of the tests")


class Place(NamedTuple):
    """A tenant behind the proxy, and the same one as another client sees it; what the calls need."""

    proxy: Proxy
    tenant: Tenant
    other: Tenant
    fence: Fence
    attempt: Attempt


@pytest.fixture
def place(postgres: PostgresHarness, tmp_path: Path) -> Iterator[Place]:
    settings = postgres.settings.model_copy(update={"connections_max": 1, "checkout_timeout_seconds": 3.0})
    other = postgres.tenant(client=1)
    for name in ("planted updated", "planted deleted"):
        other.states.create(name, 0)
    fence = other.leases.acquire("planted r", owner="a", ttl_seconds=60).fence
    attempt = _reserve(other, "planted k")
    with (
        Proxy(tmp_path, postgres.dsn) as proxy,
        PostgresStore.open(proxy.dsn, schema=postgres.schema, settings=settings) as store,
    ):
        yield Place(proxy, store.tenant(SCOPE), other, fence, attempt)


def _reserve(tenant: Tenant, key: str) -> Attempt:
    return tenant.idempotency.reserve(key, request=1, result_ttl_seconds=60, attempt_ttl_seconds=60).attempt


def _acquire(tenant: Tenant, resource: str) -> Fence:
    return tenant.leases.acquire(resource, owner="b", ttl_seconds=60).fence


def _key(place: Place) -> tuple[Any, Any] | None:
    record = place.other.idempotency.get("planted k")
    return None if record is None else (record.attempt, record.outcome)


# Each write: the call, and what is then seen of it.
ONCE: dict[str, tuple[Callable[[Place], object], Callable[[Place], object], object]] = {
    "update": (
        lambda p: p.tenant.states.update("planted updated", 1, expected_revision=1).revision,
        lambda p: p.other.states.require("planted updated").revision,
        2,
    ),
    "fenced update": (
        lambda p: p.tenant.states.update("planted updated", 1, expected_revision=1, fence=p.fence).revision,
        lambda p: p.other.states.require("planted updated").revision,
        2,
    ),
    "delete": (
        lambda p: p.tenant.states.delete("planted deleted", expected_revision=1),
        lambda p: p.other.states.get("planted deleted"),
        None,
    ),
    "acquire": (
        lambda p: _acquire(p.tenant, "planted new").owner,
        lambda p: getattr(p.other.leases.inspect("planted new"), "owner", None),
        "b",
    ),
    "renew": (
        lambda p: p.tenant.leases.renew(p.fence, ttl_seconds=600).fence == p.fence,
        lambda p: p.other.leases.renew(p.fence).fence == p.fence,
        True,
    ),
    "release": (
        lambda p: p.tenant.leases.release(p.fence),
        lambda p: p.other.leases.inspect("planted r"),
        None,
    ),
    "reserve": (
        lambda p: _reserve(p.tenant, "planted new").key,
        lambda p: getattr(p.other.idempotency.get("planted new"), "outcome", "none"),
        None,
    ),
    "renewal of an attempt": (
        lambda p: p.tenant.idempotency.renew(p.attempt) is not None,
        lambda p: _key(p) == (p.attempt, None),
        True,
    ),
    "complete": (
        lambda p: p.tenant.idempotency.complete(p.attempt, "done"),
        lambda p: _key(p) == (p.attempt, "done"),
        True,
    ),
    "fenced complete": (
        lambda p: p.tenant.idempotency.complete(p.attempt, "done", fence=p.fence),
        lambda p: _key(p) == (p.attempt, "done"),
        True,
    ),
    "abandon": (lambda p: p.tenant.idempotency.abandon(p.attempt), _key, None),
}
"""Writes that take effect once, however often they are sent."""

ANY_NUMBER: dict[str, tuple[Callable[[Place], object], Callable[[Place], object], object]] = {
    "create": (
        lambda p: p.tenant.states.create("planted new", 1).revision,
        lambda p: getattr(p.other.states.get("planted new"), "revision", None),
        1,
    ),
    "put": (
        lambda p: p.tenant.states.put("planted updated", 1).revision,
        lambda p: p.other.states.require("planted updated").revision,
        2,
    ),
    "update at any revision": (
        lambda p: p.tenant.states.update("planted updated", 1, expected_revision=ANY_REVISION).revision,
        lambda p: p.other.states.require("planted updated").revision,
        2,
    ),
    "deletion at any revision": (
        lambda p: p.tenant.states.delete("planted deleted", expected_revision=ANY_REVISION),
        lambda p: p.other.states.get("planted deleted"),
        None,
    ),
    "forget": (lambda p: p.tenant.idempotency.forget("planted k"), _key, None),
}
"""Writes that would take effect a second time."""

WRITES = {**ONCE, **ANY_NUMBER}


@pytest.mark.parametrize("name", WRITES)
def test_a_write_that_took_effect_is_known_by_its_write_id(place: Place, name: str) -> None:
    """Case 24: its answer was lost, its row says that it was this call; it took effect once (P9)."""
    write, seen, expected = WRITES[name]
    place.proxy.cut_at(b"planted")
    answer = write(place)
    assert place.proxy.has_cut
    assert seen(place) == expected
    assert answer in (expected, None, True, 2, "planted new")


@pytest.mark.parametrize("name", ONCE)
def test_a_write_that_can_take_effect_but_once_is_sent_again(place: Place, name: str) -> None:
    """The request itself was lost."""
    write, seen, expected = ONCE[name]
    place.proxy.cut_at(b"planted", unsent=True)
    write(place)
    assert place.proxy.has_cut
    assert seen(place) == expected


@pytest.mark.parametrize("name", ANY_NUMBER)
def test_a_write_that_could_take_effect_twice_is_not_sent_again(place: Place, name: str) -> None:
    """Case 24: nobody can tell whether the request is still under way, and the caller is told so (P9)."""
    write, seen, _ = ANY_NUMBER[name]
    before = seen(place)
    place.proxy.cut_at(b"planted", unsent=True)
    with pytest.raises(OutcomeUnknownError) as raised:
        write(place)
    assert not raised.value.retryable
    assert raised.value.__cause__ is raised.value.__context__ is None
    assert seen(place) == before


def test_a_takeover_that_took_effect_is_known(place: Place, postgres: PostgresHarness) -> None:
    assert place.tenant.leases.try_acquire("planted r", owner="b", ttl_seconds=60) is None  # it is prepared now
    postgres.advance(61)
    place.proxy.cut_at(b"take_over_lease")
    lease = place.tenant.leases.acquire("planted r", owner="b", ttl_seconds=60)
    assert place.proxy.has_cut
    assert lease.fence.token > place.fence.token
    assert place.other.leases.renew(lease.fence).fence == lease.fence


def test_a_reservation_that_is_still_under_way_when_it_is_sent_again_is_the_caller_s_own(
    place: Place, postgres: PostgresHarness
) -> None:
    """P9: whichever of the two is served, it is not told that another's attempt is being made."""
    former = place.other.idempotency.reserve("planted", request=1, result_ttl_seconds=600, attempt_ttl_seconds=60)
    postgres.advance(61)
    call = None
    with suppress(LookupError), place.other.transaction() as tx:
        tx.idempotency.complete(former.attempt, "never")
        place.proxy.cut_at(b"planted", under_way=True)
        call = start(lambda: _reserve(place.tenant, "planted"))
        until(lambda: postgres.waiting() == 2, "both wait")
        raise LookupError
    assert call is not None
    attempt = call.result()
    assert attempt.number > former.attempt.number
    place.other.idempotency.complete(attempt, "done")


def test_a_write_that_is_still_under_way_when_it_is_sent_again_is_found_after_the_second_was_refused(
    place: Place, postgres: PostgresHarness
) -> None:
    """P9: the first of the two took effect, behind a lock; the other was refused by what it did."""
    call = None
    with suppress(LookupError), place.other.transaction() as tx:
        tx.states.update("planted updated", "never", expected_revision=1)
        place.proxy.cut_at(b"planted", under_way=True)
        call = start(lambda: place.tenant.states.update("planted updated", "mine", expected_revision=1))
        until(lambda: postgres.waiting() == 2, "both wait")
        raise LookupError
    assert call is not None
    assert call.result().revision == 2
    assert place.other.states.require("planted updated").value == "mine"


def _overwrite(place: Place) -> None:
    place.other.states.update("planted updated", "theirs", expected_revision=ANY_REVISION)


def _supersede(place: Place) -> None:
    place.other.idempotency.forget("planted k")
    _reserve(place.other, "planted k")


@pytest.mark.parametrize(("name", "meanwhile"), [("update", _overwrite), ("put", _overwrite), ("complete", _supersede)])
def test_a_write_that_somebody_has_overwritten_since_is_unknown(
    place: Place, name: str, meanwhile: Callable[[Place], None]
) -> None:
    """Whether it took effect before the other's did, or never, its row cannot tell."""
    place.tenant.states.get("any")  # it is connected now
    place.proxy.shut()
    place.proxy.cut_at(b"planted")
    call = start(lambda: WRITES[name][0](place))
    until(lambda: place.proxy.has_cut, "the answer is lost")
    until(lambda: WRITES[name][1](place) == WRITES[name][2], "it took effect")
    meanwhile(place)
    place.proxy.open()
    with pytest.raises(OutcomeUnknownError):
        call.result()


def test_a_read_is_sent_again_once(place: Place) -> None:
    place.proxy.cut_at(b"planted")
    assert place.tenant.states.require("planted updated").revision == 1
    assert place.proxy.has_cut


def test_a_read_that_is_lost_twice_is_unavailable(place: Place) -> None:
    place.proxy.shut()
    place.proxy.cut_at(b"planted")
    with pytest.raises((StoreUnavailableError, StoreTimeoutError)):
        place.tenant.states.get("planted updated")


def test_a_commit_that_took_effect_is_known_by_its_writes(place: Place) -> None:
    """Case 38: it is a success because it is seen to be one, and the calls for after it are run."""
    ran: list[str] = []
    with place.tenant.transaction() as tx:
        tx.states.create("s", 1)
        tx.idempotency.complete(place.attempt, "done")
        tx.leases.release(place.fence)
        tx.after_commit(lambda: ran.append("once"))
        place.proxy.cut_at(b"COMMIT")
    assert place.proxy.has_cut
    assert ran == ["once"]
    assert place.other.states.require("s").revision == 1


def test_a_commit_is_known_by_its_last_writes_that_stand(place: Place) -> None:
    """Those that a savepoint undid are not looked for; one that nobody has overwritten proves the others."""
    place.tenant.states.get("any")  # it is connected now

    def write() -> None:
        with place.tenant.transaction() as tx:
            tx.states.create("overwritten", 1)
            tx.states.create("left alone", 1)
            for number in range(5):
                with suppress(LookupError), tx.transaction():
                    tx.states.create(f"undone {number}", 1)
                    raise LookupError
            place.proxy.shut()
            place.proxy.cut_at(b"COMMIT")

    call = start(write)
    until(lambda: place.proxy.has_cut, "the answer is lost")
    until(lambda: place.other.states.get("overwritten") is not None, "it took effect")
    place.other.states.update("overwritten", 2, expected_revision=1)
    place.proxy.open()
    call.result()


def test_a_commit_that_nobody_saw_is_unknown_and_never_sent_again(place: Place) -> None:
    """Case 38: the connection dies at the COMMIT: never reported as success, never replayed."""
    ran: list[str] = []
    with pytest.raises(OutcomeUnknownError) as raised, place.tenant.transaction() as tx:
        tx.states.create("s", 1)
        assert tx.states.require("s").revision == 1  # a read after it does not make it one that only read
        tx.after_commit(lambda: ran.append("never"))
        place.proxy.cut_at(b"COMMIT", unsent=True)
    assert raised.value.__cause__ is raised.value.__context__ is None
    assert ran == []
    assert place.other.states.get("s") is None


def test_a_commit_that_cannot_be_looked_for_is_unknown(place: Place) -> None:
    with pytest.raises(OutcomeUnknownError), place.tenant.transaction() as tx:
        tx.states.create("s", 1)
        place.proxy.shut()
        place.proxy.cut_at(b"COMMIT")
    assert place.other.states.require("s").revision == 1


def test_a_write_of_a_savepoint_that_was_undone_proves_no_commit(place: Place) -> None:
    """Somebody else's transaction cannot have this one's write_id, and an undone write has nobody's."""
    with pytest.raises(OutcomeUnknownError), place.tenant.transaction() as tx:
        tx.states.create("s", 1)
        with pytest.raises(LookupError), tx.transaction():
            tx.states.create("t", 1)
            raise LookupError
        place.proxy.cut_at(b"COMMIT", unsent=True)
    assert place.other.states.get("s") is None


def test_the_commit_of_a_transaction_that_only_read_is_in_no_doubt(place: Place) -> None:
    with pytest.raises(StoreUnavailableError), place.tenant.transaction() as tx:
        assert tx.states.get("s") is None
        place.proxy.cut_at(b"COMMIT")


def test_an_unknown_outcome_that_the_block_raises_goes_through(place: Place) -> None:
    """It is another call's: the transaction around it is not taken for committed."""
    with pytest.raises(OutcomeUnknownError), place.other.transaction() as tx:
        tx.states.create("s", 1)
        place.proxy.cut_at(b"planted", unsent=True)
        place.tenant.states.create("planted new", 1)
    assert place.other.states.get("s") is None


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda tenant: tenant.states.get("s"), StoreTimeoutError),
        (lambda tenant: tenant.states.create("s", 1), OutcomeUnknownError),
        (lambda tenant: tenant.states.update("s", 1, expected_revision=1), OutcomeUnknownError),
    ],
)
def test_a_silent_server_is_given_up_and_nobody_looks_for_what_it_did(
    postgres: PostgresHarness,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: Callable[[Tenant], object],
    told: type[Exception],
) -> None:
    """P11: its kernel answers, so that no keepalive tells; every other connection would be as silent."""
    settings = postgres.settings.model_copy(update={"statement_timeout_seconds": 0.2})
    with (
        Proxy(tmp_path, postgres.dsn) as proxy,
        PostgresStore.open(proxy.dsn, schema=postgres.schema, settings=settings) as store,
    ):
        tenant = store.tenant(SCOPE)
        assert tenant.states.get("s") is None
        proxy.silence()
        before, takes = proxy.connections, Mock(side_effect=store._database._pool.take)
        monkeypatch.setattr(store._database._pool, "take", takes)
        with pytest.raises(told):
            call(tenant)
        assert takes.call_count == 1
        assert proxy.connections - before <= 1  # the pool's, in the place of the one that was given up


def test_a_transaction_on_a_silent_server_is_given_up(postgres: PostgresHarness, tmp_path: Path) -> None:
    """P11."""
    settings = postgres.settings.model_copy(update={"statement_timeout_seconds": 0.2})
    with (
        Proxy(tmp_path, postgres.dsn) as proxy,
        PostgresStore.open(proxy.dsn, schema=postgres.schema, settings=settings) as store,
    ):
        tenant = store.tenant(SCOPE)
        with pytest.raises(StoreTimeoutError), tenant.transaction() as tx:
            assert tx.states.get("s") is None
            proxy.silence()
            tx.states.create("s", 1)
    assert postgres.tenant().states.get("s") is None
