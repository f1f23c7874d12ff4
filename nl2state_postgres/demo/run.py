"""A run of the demo: its server, its schema, its input, the inbox, the check, and what came of it."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from nl2state import Value
from nl2state_postgres.connection import Connection
from nl2state_postgres.demo import check, deliveries, generator, without
from nl2state_postgres.demo.crew import Crew
from nl2state_postgres.demo.inbox import Inbox, Place, Tally
from nl2state_postgres.demo.serving import Charge
from nl2state_postgres.demo.worker import SETTINGS
from nl2state_postgres.embedded import EmbeddedPostgres
from nl2state_postgres.sessions import conninfo_of
from nl2state_postgres.store import PostgresStore

__all__ = ["Options", "Outcome", "Progress", "run"]

T = TypeVar("T")

_PREFIX = "nl2state-demo-"
_SERVER_SETTINGS = {"fsync": "off"}  # its data is thrown away; a laptop's slow disk is not what there is to see
_DROP_LOCK_TIMEOUT = "10s"
_MODULES = {False: "nl2state_postgres.demo.worker", True: "nl2state_postgres.demo.without"}

Progress = Callable[[str, int, int], None]
"""Told what is being done, how much of it is done, and of how much; 0 of 0 where that is not known."""


@dataclass(frozen=True, slots=True)
class Options:
    """What to run. Without an `input`, `deliveries` are made up; without a `dsn`, on a server of its own."""

    input: Path | None
    deliveries: int
    seed: int
    workers: int
    dsn: str | None
    without: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a run."""

    deliveries: int
    without: bool
    temporary_server: bool
    tally: Tally
    damage: check.Damage


def run(options: Options, progress: Progress, end: Callable[[], None]) -> Outcome:
    """Run the demo, and leave nothing behind. `end` is called before the clean-up.

    Raises InputError, DemoError, StoreError; OSError where there is no room for temporary files.
    """
    with ExitStack() as resources:

        def enter(context: AbstractContextManager[T]) -> T:
            entered = resources.enter_context(context)
            resources.callback(end)  # whatever is cleaned up first, this comes before it
            return entered

        folder = Path(enter(tempfile.TemporaryDirectory(prefix=_PREFIX)))
        path = options.input or folder / "deliveries.jsonl"
        if options.input is None:
            progress("making deliveries", 0, 0)
            generator.write(path, options.deliveries, options.seed)
        progress("reading deliveries", 0, 0)
        places = [_place(line) for line in deliveries.read(path)]
        progress("starting PostgreSQL" if options.dsn is None else "connecting", 0, 0)
        dsn = options.dsn or enter(EmbeddedPostgres(settings=_SERVER_SETTINGS)).dsn
        schema = "nl2state_demo"
        if options.dsn is not None:
            schema = enter(_schema_of_its_own(dsn))
        (without.prepare if options.without else _prepare)(dsn, schema)
        charge = Charge(dsn, schema, str(path.resolve()), "")
        crew = enter(Crew(_MODULES[options.without], charge, folder / "workers.log"))
        inbox = Inbox(crew, places, options.seed, lambda done, of: progress("delivering", done, of))
        tally = inbox.run(options.workers)
        progress("checking", 0, 0)
        read = enter((without.reading if options.without else _reading)(dsn, schema))
        damage = check.compare((line.delivery for line in deliveries.read(path)), read)
        return Outcome(len(places), options.without, options.dsn is None, tally, damage)


def _place(line: deliveries.Line) -> Place:
    return Place(line.offset, line.length, (line.delivery.account, line.delivery.record))


def _prepare(dsn: str, schema: str) -> None:
    PostgresStore.open(dsn, schema=schema, settings=SETTINGS).close()


@contextmanager
def _reading(dsn: str, schema: str) -> Iterator[Callable[[str, str], Value]]:
    """Yield what reads a record of an account."""
    with PostgresStore.open(dsn, schema=schema, migrate=False, settings=SETTINGS) as store:

        def read(account: str, record: str) -> Value:
            found = store.tenant(deliveries.scope_of(account)).states.get(record)
            return None if found is None else found.value

        yield read


@contextmanager
def _schema_of_its_own(dsn: str) -> Iterator[str]:
    """Yield the name of a schema that is nobody else's, and drop it in the end."""
    schema = f"nl2state_demo_{secrets.token_hex(6)}"
    catalog = without.statements("schema", schema)
    conninfo = conninfo_of(dsn, SETTINGS)
    Connection.bare(conninfo).close()  # a wrong DSN is told now, and there is nothing to drop
    try:
        yield schema
    finally:
        with Connection.bare(conninfo) as connection:
            connection.run(catalog["bound_lock_waits"], {"lock_timeout": _DROP_LOCK_TIMEOUT})
            connection.run(catalog["drop_schema"], {})
