"""From an SQLSTATE to our errors. Nothing of the driver's error, its text or its row, goes on from here."""

from __future__ import annotations

from typing import Final

from nl2state.errors import (
    CorruptError,
    OutcomeUnknownError,
    SchemaError,
    StoreError,
    StoreTimeoutError,
    StoreUnavailableError,
)

__all__ = ["ends_connection", "failure"]

_TIMEOUTS: Final = {
    "57014": "the statement's time ran out",
    "55P03": "the time for a lock ran out",
    "25P03": "the transaction was idle for too long, and the server ended it",
    "25P04": "the transaction's time ran out",
}
_UNAVAILABLE: Final = {
    "0A000": "the server cannot do that in this session",
    "25006": "the server is read-only",
    "40001": "the server could not serialise the transaction",
    "40P01": "the server broke a deadlock",
    "3D000": "the database does not exist",
    "55000": "the server is in recovery",
}
_UNAVAILABLE_CLASSES: Final = {
    "08": "the connection was lost",
    "28": "the server refused the role",
    "53": "the server is out of resources",
    "57": "the server ended the connection",
    "58": "the server's system failed",
}
_SCHEMA: Final = {
    "42501": "this role lacks a privilege on the schema: its owner grants it, or runs `nl2state migrate`",
    "3F000": "the schema is missing",
    "42P01": "a table of the schema is missing",
    "42703": "a column of the schema is missing",
    "42883": "a function is missing",
}
_REFUSED: Final = frozenset({"25006", "0A000"})
"""What was refused, and so not run: by a replica a write, and a BEGIN that is to write; and a plan that is older than
the schema. Another connection may lead elsewhere, and has no plans."""

_ENDS_CONNECTION: Final = frozenset({*_REFUSED, "25P03", "25P04", "57P01", "57P02", "57P03", "57P04", "57P05"})


def failure(state: str, *, in_doubt: bool) -> StoreError:
    """Return what a caller is told of a driver's error, by its SQLSTATE; empty where the driver itself refused to send.

    `in_doubt` says that the statement, if it ran, has committed by itself: then a lost connection leaves its outcome
    unknown. Without it, the connection's loss undid it.
    """
    lost = ends_connection(state)
    if state in _TIMEOUTS:
        return StoreTimeoutError(_TIMEOUTS[state])
    if state == "40003" or (lost and in_doubt and state not in _REFUSED):
        return OutcomeUnknownError("the connection was lost before the answer came")
    if lost or state in _UNAVAILABLE or state[:2] in _UNAVAILABLE_CLASSES:
        words = _UNAVAILABLE.get(state) or _UNAVAILABLE_CLASSES.get(state[:2], "the server ended the connection")
        return StoreUnavailableError(words)
    if state in _SCHEMA:
        return SchemaError(_SCHEMA[state])
    if state[:2] == "XX":
        return CorruptError("the server found its data damaged")
    return StoreError("the server refused the statement")


def ends_connection(state: str) -> bool:
    """Whether a connection that saw this is not to be used again."""
    return state in _ENDS_CONNECTION or state.startswith("08")
