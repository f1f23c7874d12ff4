"""The same work as it is often done today: a lease row, an unconditional write, and the key marked done separately.

Each of its steps is sound while nothing goes wrong: the lease has an expiry and an owner, the key is looked up under
the lease, and the lease is freed by its owner alone. What is missing is what only one database can give: that the write
is refused when the lease is no longer held, and that it commits together with the key.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import resources

from nl2state import LeaseBusyError, Value, derive_key
from nl2state_postgres.catalog import Catalog
from nl2state_postgres.connection import Connection
from nl2state_postgres.demo.deliveries import Delivery, scope_of
from nl2state_postgres.demo.record import apply
from nl2state_postgres.demo.serving import TTL_SECONDS, WAIT_SECONDS, Answer, Charge, Deliver, Reached, serve
from nl2state_postgres.demo.worker import SETTINGS
from nl2state_postgres.sessions import conninfo_of

__all__ = ["deliver", "opened", "prepare", "reading", "statements"]

_POLL_SECONDS = 0.01


def deliver(connection: Connection, catalog: Catalog, delivery: Delivery, *, worker: str, reached: Reached) -> Answer:
    """Count a delivery in its record: once, unless something goes wrong. Raises LeaseBusyError."""
    scope = scope_of(delivery.account).uuid
    key = {"scope": scope, "key": derive_key("webhook", delivery.id)}
    lease = {"scope": scope, "resource": delivery.record, "owner": worker}
    taken_over = _take_lease(lambda: connection.run(catalog["take_lease"], {**lease, "ttl_seconds": TTL_SECONDS}).row)
    reached("acquired", "acquire")
    done = connection.run(catalog["find_key"], key).row is not None
    reached("reserved", "reserve")
    if not done:
        reached("leased")
        record = {"scope": scope, "record_id": delivery.record}
        current = connection.run(catalog["read_state"], record).row
        reached("read", "get")
        value = json.dumps(apply(None if current is None else json.loads(current[0]), delivery)).encode()
        reached("in_transaction")
        connection.run(catalog["write_state"], {**record, "payload": value})
        reached("written", "write")
        reached("committed")
        connection.run(catalog["mark_key"], key)
        reached("marked", "complete")
    connection.run(catalog["free_lease"], lease)
    reached("released", "release")
    return Answer("replayed" if done else "applied", taken_over=taken_over)


@contextmanager
def opened(charge: Charge) -> Iterator[Deliver]:
    """Connect for a worker process."""
    catalog = statements("without", charge.schema)
    with Connection.bare(conninfo_of(charge.dsn, SETTINGS), prepares=True) as connection:
        yield lambda delivery, reached: deliver(connection, catalog, delivery, worker=charge.name, reached=reached)


def prepare(dsn: str, schema: str) -> None:
    """Make the tables."""
    catalog = statements("without", schema)
    with Connection.bare(conninfo_of(dsn, SETTINGS)) as connection:
        for name in ("create_schema", "create_leases", "create_states", "create_keys"):
            connection.run(catalog[name], {})


@contextmanager
def reading(dsn: str, schema: str) -> Iterator[Callable[[str, str], Value]]:
    """Yield what reads a record of an account."""
    catalog = statements("without", schema)
    with Connection.bare(conninfo_of(dsn, SETTINGS)) as connection:

        def read(account: str, record: str) -> Value:
            values = {"scope": scope_of(account).uuid, "record_id": record}
            row = connection.run(catalog["read_state"], values).row
            return None if row is None else json.loads(row[0])

        yield read


def statements(name: str, schema: str) -> Catalog:
    """Return the statements of one of the demo's files, for a schema."""
    text = (resources.files("nl2state_postgres.demo") / "sql" / f"{name}.sql").read_text(encoding="utf-8")
    return Catalog({f"{name}.sql": text}, schema=schema, clock="clock_timestamp()")


def _take_lease(tried: Callable[[], tuple[bool] | None]) -> bool:
    """Take a lease, waiting for it for a while. Returns whether its holder had let it expire."""
    until = time.monotonic() + WAIT_SECONDS
    while True:
        row = tried()
        if row is not None:
            return row[0]
        if time.monotonic() > until:
            raise LeaseBusyError("the lease is held", retry_after_seconds=TTL_SECONDS / 3)
        time.sleep(_POLL_SECONDS)


if __name__ == "__main__":
    serve(opened)
