"""How a connection and its session are set up, and what is asked of a session that somebody else set up."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import psycopg

from nl2state.errors import InvalidInputError, UsageError
from nl2state_postgres.catalog import Catalog
from nl2state_postgres.runners import Runner
from nl2state_postgres.settings import Settings

__all__ = ["check_session", "conninfo_of", "milliseconds", "session_values"]


def conninfo_of(dsn: str, settings: Settings) -> str:
    """Return the DSN with what every connection of ours needs. Raises InvalidInputError for one that cannot be read."""
    given: dict[str, Any] | None = None
    if isinstance(dsn, str) and "\0" not in dsn:  # where libpq would stop reading, and say nothing
        with suppress(psycopg.ProgrammingError, UnicodeError):
            given = psycopg.conninfo.conninfo_to_dict(dsn)
    if given is not None:
        packets = {"keepalives": 1, "keepalives_idle": 15, "keepalives_interval": 5, "keepalives_count": 3}
        ours = {
            "connect_timeout": max(2, round(settings.connect_timeout_seconds)),  # libpq takes whole seconds, 2 at least
            "tcp_user_timeout": round(1_000 * settings.statement_timeout_seconds),
            **packets,
        }
        fixed = {"client_encoding": "UTF8", "application_name": settings.application_name}
        return psycopg.conninfo.make_conninfo("", **{**ours, **given, **fixed})
    raise InvalidInputError("dsn cannot be read", field="dsn")


def check_session(runner: Runner, catalog: Catalog) -> None:
    """Raise UsageError for a session that we do not set up, and that is not fit for our statements.

    What they rest on: each sees what is committed when it runs, a commit that was told outlives a crash, its waits have
    an end, and a transaction that is left open has one.
    """
    isolation, encoding, synchronous, *bounds = runner.run(catalog["read_session"], {}).row or (None,) * 6
    if isolation != "read committed":
        raise UsageError("the session's default_transaction_isolation is not READ COMMITTED")
    if encoding != "UTF8":
        raise UsageError("the session's client_encoding is not UTF8")
    if synchronous == "off":
        raise UsageError("the session's synchronous_commit is off")
    names = ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout")
    unbounded = [name for name, bound in zip(names, bounds, strict=True) if bound in (None, "0")]
    if unbounded:
        raise UsageError(f"the session has no {unbounded[0]}: set it for the role, or by session_settings()")


def session_values(settings: Settings) -> dict[str, str]:
    """Return the parameters of set_up_session."""
    return {
        "idle_timeout": milliseconds(settings.transaction_idle_seconds),
        "lock_timeout": milliseconds(settings.lock_timeout_seconds),
        "statement_timeout": milliseconds(settings.statement_timeout_seconds),
    }


def milliseconds(seconds: float) -> str:
    """Return a duration as the server's settings take it."""
    return str(max(1, round(seconds * 1_000)))
