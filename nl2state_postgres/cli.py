"""The `nl2state` command.

It exits with 0; with 1 where the demo found damage; with 2 where it could not do what was asked; and with 128 and the
number of the signal where it was interrupted: 130 after a Ctrl-C.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

try:
    import typer

    from nl2state_postgres.demo import report
except ModuleNotFoundError as _missing:
    if _missing.name not in {"typer", "rich"}:
        raise
    sys.stderr.write("nl2state: the command needs its own libraries: pip install 'nl2state[cli]'\n")
    raise SystemExit(2) from None

from nl2state import StoreError
from nl2state_postgres.catalog import Catalog
from nl2state_postgres.connection import Connection
from nl2state_postgres.demo.deliveries import InputError
from nl2state_postgres.demo.inbox import DemoError
from nl2state_postgres.demo.interrupts import Interrupted, interruptible
from nl2state_postgres.demo.run import Options, run
from nl2state_postgres.schema import prepare
from nl2state_postgres.sessions import conninfo_of
from nl2state_postgres.settings import Settings

__all__ = ["demo", "main", "migrate"]

_DELIVERIES = 2_000
_DELIVERIES_MAX = 1_000_000
_WORKERS_MAX = 32

_app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


def main() -> None:
    """Run the command."""
    try:
        _app()
    except KeyboardInterrupt:  # before the demo has its own handler
        sys.exit(130)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"nl2state {version('nl2state')}")
        raise typer.Exit


@_app.callback()
def _nl2state(
    *,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Durable state, idempotency keys and fenced leases on PostgreSQL."""


@_app.command()
def demo(
    *,
    input_file: Annotated[
        Path | None, typer.Option("--input", help="Deliveries as JSON lines. Without it, they are made up.")
    ] = None,
    deliveries: Annotated[
        int | None, typer.Option(min=0, max=_DELIVERIES_MAX, help=f"How many to make up: {_DELIVERIES} unless told.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the made-up deliveries, and of the order of the sendings.")] = 1,
    workers: Annotated[int, typer.Option(min=1, max=_WORKERS_MAX, help="Worker processes.")] = 4,
    dsn: Annotated[
        str | None,
        typer.Option(
            help="A PostgreSQL server of yours: the demo makes a schema there, and drops it. Without it, a temporary"
            " server is started."
        ),
    ] = None,
    without: Annotated[
        bool, typer.Option("--without", help="Do it as it is often done today instead, and see the damage.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the tables.")] = False,
) -> None:
    """Show a webhook inbox whose workers are killed and paused while they work.

    Exits with 1 if a delivery was lost or took effect twice, as --without shows.

    Exits with 2 if the demo could not be run.
    """
    if input_file is not None and deliveries is not None:
        raise typer.BadParameter("--input has deliveries of its own: leave --deliveries out")
    options = Options(input_file, _DELIVERIES if deliveries is None else deliveries, seed, workers, dsn, without)
    with _errors_in_one_line(), interruptible() as end, report.progress_bar() as progress:
        outcome = run(options, progress, end)
    if as_json:
        typer.echo(report.as_json(outcome))
    else:
        report.show(outcome)
    if outcome.damage.lost or outcome.damage.doubled:
        raise typer.Exit(1)


@_app.command()
def migrate(
    *,
    dsn: Annotated[str, typer.Option(help="The PostgreSQL server.")],
    schema: Annotated[str, typer.Option(help="The schema of the store.")] = "nl2state",
) -> None:
    """Make the store's schema, or bring it up to this version."""
    settings = Settings()
    with _errors_in_one_line():
        catalog = Catalog.load(schema=schema, clock=settings.clock)
        with closing(Connection.bare(conninfo_of(dsn, settings))) as connection:
            applied = prepare(connection, catalog, schema, migrate=True)
    typer.echo(f"schema {schema}: {applied} migration{'' if applied == 1 else 's'} applied")


@contextmanager
def _errors_in_one_line() -> Iterator[None]:
    try:
        yield
    except (StoreError, InputError, DemoError, OSError) as error:
        words, status = str(error), 2
    except Interrupted as interrupted:
        words, status = "interrupted", interrupted.exit_status
    else:
        return
    typer.echo(f"nl2state: {words}", err=True)
    raise typer.Exit(status)
