"""P7, under a lock wait: a reservation that waited for a row is answered, whatever became of the row."""

from __future__ import annotations

import pytest

from nl2state.testing.harness import start_waiting
from nl2state_postgres.catalog import Catalog
from tests.races.session import Session
from tests.servers import PostgresHarness

_TTL = {"key": "k", "attempt_ttl_seconds": 60.0, "result_ttl_seconds": 60.0, "fingerprint": b"x" * 32}


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
@pytest.mark.parametrize("other", ["a first reservation", "a replacement", "a clean-up"])
def test_a_reservation_that_waited_has_its_answer(harness: PostgresHarness, other: str, end: str) -> None:
    """Case 9: the other one commits after this statement's snapshot, which shows no key, or one that is over."""
    catalog = Catalog.load(schema=harness.schema, clock=harness.settings.clock)
    a, b = Session(harness, catalog), Session(harness, catalog)
    number = 0
    if other != "a first reservation":
        number = a.run("reserve_key", **_TTL)[0]
        harness.advance(90_000)
    a.send("BEGIN")
    if other == "a clean-up":
        assert a.run("sweep_keys", after="", age_seconds=86_400.0, page_size=10)[0] == 1
        theirs = number
    else:
        theirs, mine, *_ = a.run("reserve_key", **_TTL)
        assert mine
    reservation = start_waiting(harness, lambda: b.run("reserve_key", **_TTL))
    a.send(end)
    answer = reservation.result()
    if answer is None:  # it came in between: the next snapshot has it
        assert end == "COMMIT"
        answer = b.run("reserve_key", **_TTL)
    attempt, mine, same, *_ = answer
    if end == "COMMIT" and other != "a clean-up":
        assert (attempt, mine, same) == (theirs, False, True)
    else:
        assert (mine, same) == (True, True)
        assert attempt > number
    a.close()
    b.close()


def test_a_reservation_that_waited_for_another_request_s_leaves_it_though_its_attempt_ran_out(
    harness: PostgresHarness,
) -> None:
    """The key is the other request's until its result's life is over: that is a conflict, and no attempt."""
    catalog = Catalog.load(schema=harness.schema, clock=harness.settings.clock)
    a, b = Session(harness, catalog), Session(harness, catalog)
    mine = _TTL | {"result_ttl_seconds": 600.0}
    a.send("BEGIN")
    number = a.run("reserve_key", **mine)[0]
    harness.advance(61)
    late = start_waiting(harness, lambda: b.run("reserve_key", **mine | {"fingerprint": b"y" * 32}))
    a.send("COMMIT")
    assert late.result() is None
    attempt, _, same, *_ = b.run("reserve_key", **mine | {"fingerprint": b"y" * 32})
    assert (attempt, same) == (number, False)
    a.close()
    b.close()
