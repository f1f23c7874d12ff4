"""From an SQLSTATE to our errors. Nothing of the driver's error, its text or its row, goes on from here.

The states are those of the PostgreSQL manual's appendix A. One that is not named is judged by its class, the first two
characters.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from nl2state.errors import (
    CorruptError,
    OutcomeUnknownError,
    SchemaError,
    StoreError,
    StoreTimeoutError,
    StoreUnavailableError,
)

__all__ = ["LOST", "SILENT", "STALE", "LockTimeoutError", "Told", "ends_connection", "failure", "told"]


class LockTimeoutError(StoreTimeoutError):
    """One lock was waited for too long: to a caller, a StoreTimeoutError. Here it tells that the store answers."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as what it is to a caller, who may read it where this package is not installed."""
        return StoreTimeoutError, self.args


Told: TypeAlias = tuple[type[StoreError], str]
"""What a caller is told: the class, and the words."""

LOST: Final = "08006"
"""The connection failed, and nobody said why."""

SILENT: Final = "08S01"
"""Ours: the server did not answer in time, though the connection may be there."""

STALE: Final = frozenset({"0A000", "26000", "42P05"})
"""What is prepared is not what the server knows, or its result is of another type by now. It comes before execution."""

_STATES: Final[dict[str, Told]] = {
    SILENT: (StoreTimeoutError, "the server did not answer in time"),
    "0A000": (StoreUnavailableError, "the server is in recovery, or the schema changed under a prepared statement"),
    "25006": (StoreUnavailableError, "the server is read-only"),
    "25P03": (StoreTimeoutError, "the transaction was idle for too long, and the server ended it"),
    "25P04": (StoreTimeoutError, "the transaction's time ran out"),
    "26000": (StoreUnavailableError, "the server does not know a prepared statement any more"),
    "3D000": (SchemaError, "the database does not exist"),
    "3F000": (SchemaError, "the schema is missing"),
    "40003": (OutcomeUnknownError, "the server cannot tell whether the statement was completed"),
    "42501": (
        SchemaError,
        "this role lacks a privilege on the schema: its owner grants it, or runs `nl2state migrate`",
    ),
    "42703": (SchemaError, "a column of the schema is missing"),
    "42883": (SchemaError, "a function is missing"),
    "42P01": (SchemaError, "a table of the schema is missing"),
    "42P07": (SchemaError, "the schema has a table that is not the store's: give the store a schema of its own"),
    "42P05": (StoreUnavailableError, "the server knows a statement that was prepared anew"),
    "55000": (StoreUnavailableError, "the server is in recovery"),
    "55P03": (LockTimeoutError, "the time for a lock ran out"),
    "57014": (StoreTimeoutError, "the statement's time ran out, or it was cancelled"),
    "XX000": (StoreError, "the server failed in itself"),
}
_UNAVAILABLE: Final = {
    "08": "the connection was lost",
    "28": "the server refused the role",
    "40": "the server undid the transaction: it met another, or a deadlock",
    "53": "the server is out of resources",
    "57": "the server ended the connection",
    "58": "the server's system failed",
    "72": "the server removed what the statement was to read",
    "F0": "the server's configuration is damaged",
}
_REFUSED: Final = "02 03 09 0A 0B 0F 0L 0P 0Z 10 20 21 22 23 24 25 26 27 2B 2D 2F 34 38 39 3B 3D 3F 42 44 54 55 HV P0"
"""Nothing that our statements do on the tables that we made. A trigger, a rule or a policy of somebody else's may."""

_CLASSES: Final[dict[str, Told]] = {
    **{name: (StoreUnavailableError, words) for name, words in _UNAVAILABLE.items()},
    **dict.fromkeys(_REFUSED.split(), (StoreError, "the server refused the statement")),
    "XX": (CorruptError, "the server found its data damaged"),
}
_UNDONE: Final = frozenset({"25006", "25P03", "25P04"})  # the server says that it kept nothing
_ENDS_CONNECTION: Final = STALE | _UNDONE | {"57P01", "57P02", "57P03", "57P04", "57P05"}


def told(state: str) -> Told | None:
    """Return the class and the words for an SQLSTATE; None for one that nobody has heard of."""
    return _STATES.get(state) or _CLASSES.get(state[:2])


def failure(state: str, *, in_doubt: bool) -> StoreError:
    """Return what a caller is told of a driver's error, by its SQLSTATE; empty where the driver itself refused to send.

    `in_doubt` says that the statement, if it ran, has committed by itself: then a lost connection leaves its outcome
    unknown. Without it, the connection's loss undid it.
    """
    if in_doubt and ends_connection(state) and state not in _UNDONE | STALE:
        return OutcomeUnknownError("the connection was lost before the answer came")
    kind, words = told(state) or (StoreError, "the server or its driver refused the statement")
    return kind(words)


def ends_connection(state: str) -> bool:
    """Whether a connection that saw this is not to be used again."""
    return state in _ENDS_CONNECTION or state.startswith("08")
