"""What a session's statements run on, ours or borrowed, and what comes of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import psycopg
from psycopg.adapt import AdaptersMap

from nl2state.errors import CorruptError
from nl2state_postgres.catalog import Statement

if TYPE_CHECKING:
    from psycopg import abc
    from psycopg.pq.abc import PGresult

__all__ = ["ADAPTERS", "BEGIN", "Answer", "Row", "Runner", "answer_of"]

Row: TypeAlias = tuple[Any, ...]
"""What a statement returns, in the order of its columns."""

BEGIN: Final = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
"""Whatever the role's or the database's defaults are: what a fence and a migration read has to be of now."""

ADAPTERS: Final = AdaptersMap(types=psycopg.postgres.types)
"""How values are sent and rows are read, whatever adapters a service registers, for all of psycopg too.

Times are in UTC.
"""

psycopg.postgres.register_default_adapters(ADAPTERS)


class Answer:
    """What came of a statement: its rows, how many it touched, and the word of its command."""

    __slots__ = ("_result", "rows")

    def __init__(self, rows: list[Row], result: PGresult) -> None:
        self.rows = rows
        self._result = result

    @property
    def row(self) -> Row | None:
        """The only row, or None where there is none."""
        return self.rows[0] if self.rows else None

    @property
    def touched(self) -> int:
        """How many rows it inserted, updated or deleted, or how many it returned."""
        return self._result.command_tuples or 0

    @property
    def command(self) -> str:
        """What the server says that it did."""
        return (self._result.command_status or b"").decode()


class Runner(Protocol):
    """A connection, ours or borrowed, as a session's statements see it. It raises a StoreError; the driver's stays."""

    @property
    def closed(self) -> bool:
        """Whether it was lost, or closed for what it told."""
        ...

    @property
    def lost(self) -> bool:
        """Whether it broke under a statement, so that another one may tell what became of that."""
        ...

    @property
    def epoch(self) -> int | None:
        """The epoch of tokens that are granted on it; None where each grant reads it."""
        ...

    def run(
        self, statement: Statement, values: Mapping[str, Any], *, in_doubt: bool = False, after: Sequence[str] = ()
    ) -> Answer:
        """Run a statement. `in_doubt` says that it commits by itself: a lost answer leaves its outcome unknown.

        `after` are commands without parameters and rows. They travel before it, in the same round trip where that can
        be; it does not run where one of them fails, and their failure is raised.
        """
        ...

    def run_many(
        self, statements: Sequence[tuple[Statement, Mapping[str, Any]]], *, after: Sequence[str] = ()
    ) -> list[Answer]:
        """Run statements of an open transaction in their order, in one round trip where that can be.

        The first that fails is the last that runs, and its failure is raised. For `after`, see `run`.
        """
        ...

    def command(self, sql: str, *, in_doubt: bool = False) -> Answer:
        """Run a command that has no parameters, or several."""
        ...

    def close(self) -> None:
        """Hang up."""
        ...


def answer_of(loaders: abc.Transformer, result: PGresult) -> Answer:
    """Return what a result says, read by its loaders. Raises CorruptError for a value that Python cannot hold."""
    try:
        rows = loaders.load_rows(0, result.ntuples, tuple)
    except psycopg.Error:
        rows = None
    if rows is None:
        raise CorruptError("a stored value cannot be read")
    return Answer(rows, result)
