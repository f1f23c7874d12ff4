"""The worker of the demo, and an example of the library's use: it does each delivery once, whatever dies.

`reached(...)` is the demo's own: it times the calls, and is where the worker may be killed or stopped.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from nl2state import Json, StoreError, Tenant, derive_key
from nl2state_postgres import PostgresStore, Settings
from nl2state_postgres.demo.deliveries import Delivery, scope_of
from nl2state_postgres.demo.record import apply
from nl2state_postgres.demo.serving import (
    TRANSACTION_IDLE_SECONDS,
    TTL_SECONDS,
    WAIT_SECONDS,
    Answer,
    Charge,
    Deliver,
    Reached,
    serve,
)

__all__ = ["SETTINGS", "deliver", "opened"]

SETTINGS = Settings(connections_min=1, connections_max=2, transaction_idle_seconds=TRANSACTION_IDLE_SECONDS)
"""A worker process does one delivery at a time; the end of an idle transaction comes soon."""

_RESULT_TTL_SECONDS = 86_400


def deliver(tenant: Tenant, delivery: Delivery, *, worker: str, reached: Reached) -> Answer:
    """Count a delivery in its record, once, however often and to however many workers it is sent.

    Raises BusyError where another worker is at it, FencingRejectedError where this one was too late, and other errors
    of the store. After any of them the sender sends it again.
    """
    reservation = tenant.idempotency.reserve(
        derive_key("webhook", delivery.id),
        request_fingerprint=delivery.fingerprint,
        record_id=delivery.record,
        result_ttl_seconds=_RESULT_TTL_SECONDS,
        attempt_ttl_seconds=TTL_SECONDS,
    )
    reached("reserved", "reserve")
    if reservation.completed:
        return Answer("replayed")
    answer = None
    try:
        with tenant.hold(delivery.record, owner=worker, ttl_seconds=TTL_SECONDS, wait_seconds=WAIT_SECONDS) as held:
            taken_over = held.lease.taken_over
            reached("acquired", "acquire")
            current = tenant.states.get(delivery.record)
            reached("read", "get")
            value: Json = apply(None if current is None else current.value, delivery)
            with held.transaction() as tx:  # every write in it is fenced, and they commit together
                reached("leased")
                if current is None:
                    written = tx.states.create(delivery.record, value)
                else:
                    written = tx.states.update(delivery.record, value, expected_revision=current.revision)
                reached("written", "write")
                tx.idempotency.complete(reservation.attempt, {"revision": written.revision})
                reached("in_transaction", "complete")
            answer = Answer("applied", taken_over=taken_over)
            reached("committed", "commit")
        reached("released", "release")
    except StoreError:
        if answer is None:  # it did not commit: let the next sending try at once
            with suppress(StoreError):
                tenant.idempotency.abandon(reservation.attempt)
            raise
    return answer  # a lease that could not be released runs out


@contextmanager
def opened(charge: Charge) -> Iterator[Deliver]:
    """Open the store for a worker process."""
    with PostgresStore.open(charge.dsn, schema=charge.schema, migrate=False, settings=SETTINGS) as store:
        yield lambda delivery, reached: deliver(
            store.tenant(scope_of(delivery.account)), delivery, worker=charge.name, reached=reached
        )


if __name__ == "__main__":
    serve(opened)
