"""Our own connections: what they are set up with, and one statement in one round trip, through libpq itself.

psycopg's cursors would cost as much again as the server does, and a wait in them has no end that the client sets.
So statements are sent, and their answers read, by psycopg's `pq` layer. A connection is used by one thread at a time:
libpq would give two of them each other's rows.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NoReturn

import psycopg
from psycopg.adapt import Transformer
from psycopg.pq import ConnStatus, DiagnosticField, ExecStatus, Format, TransactionStatus

from nl2state.errors import StoreError, StoreUnavailableError
from nl2state_postgres import sqlstates
from nl2state_postgres.catalog import Catalog, Statement
from nl2state_postgres.runners import ADAPTERS, Answer, Row, answer_of
from nl2state_postgres.sessions import check_session, session_values
from nl2state_postgres.settings import Settings

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

__all__ = ["UNREACHABLE", "Connection", "reading"]

UNREACHABLE: Final = "the server cannot be reached, or refused the role or the database"
"""What is told where a connection cannot be made."""

# As numbers: to look up a member of an enumeration, or to hash it, costs more than to compare it.
_BINARY: Final = int(Format.BINARY)
_IDLE: Final = int(TransactionStatus.IDLE)
_SYNC: Final = int(ExecStatus.PIPELINE_SYNC)
_FAILED: Final = frozenset(map(int, (ExecStatus.BAD_RESPONSE, ExecStatus.FATAL_ERROR, ExecStatus.PIPELINE_ABORTED)))
_CANCEL_SECONDS: Final = 1.0
_GRACE_SECONDS: Final = 2.0
"""How much longer than the server's own bound on a statement its answer is waited for."""


class Connection(psycopg.Connection[Row]):
    """A connection that was set up for our statements. Its repr tells nothing of the server: the pool logs it."""

    epoch: int | None = None
    at_hand_until = 0.0  # by the monotonic clock: then the pool's own rules are to be asked
    _prepares = False
    _bound_seconds = 60.0
    _lost = False
    _readable: Callable[[float], object]
    _loaders: dict[Statement, Any]  # of each statement that is prepared; None before it ran

    @classmethod
    def bare(cls, conninfo: str, *, prepares: bool = False) -> Connection:
        """Open a connection that is not set up: for migrations. Raises StoreUnavailableError."""
        with suppress(psycopg.Error, ValueError):  # ValueError: a host that no resolver takes
            connection = super().connect(conninfo, autocommit=True)
            connection._readable = reading(connection.pgconn.socket)
            connection._loaders = {}
            connection._prepares = prepares
            return connection
        raise StoreUnavailableError(UNREACHABLE)

    @classmethod
    def ready(cls, conninfo: str, settings: Settings, catalog: Catalog) -> Connection:
        """Open and set up a connection. Raises a StoreError, and leaves none open then."""
        connection = cls.bare(conninfo)
        try:
            connection._set_up(settings, catalog)
        except BaseException:
            connection.close()
            raise
        return connection

    @classmethod
    def connect(cls, conninfo: str = "", **kwargs: Any) -> Connection:
        """Open and set up a connection for the pool. `failed` is told whether it could be made.

        Raises psycopg.OperationalError, with words of ours: the pool logs them.
        """
        try:
            connection = cls.ready(conninfo, kwargs["settings"], kwargs["catalog"])
        except StoreError as error:
            failure = error.again()
        else:
            kwargs["failed"](None)
            return connection
        kwargs["failed"](failure)
        raise psycopg.OperationalError(failure.args[0])

    def __repr__(self) -> str:
        return f"<nl2state connection {id(self):#x}>"

    @property
    def lost(self) -> bool:
        """Whether it broke under a statement."""
        return self._lost

    @property
    def alive(self) -> bool:
        """Whether the server has not hung up while the connection idled.

        A poll would tell it too, but would let other threads run meanwhile, and wait for them.
        """
        try:
            self.pgconn.consume_input()  # what the server may have said before it hung up
            self.pgconn.consume_input()
        except psycopg.Error:
            return False
        return True

    def run(
        self, statement: Statement, values: Mapping[str, Any], *, in_doubt: bool = False, after: Sequence[str] = ()
    ) -> Answer:
        """Run a statement. Raises a StoreError; the driver's stays here."""
        sent = [None if (value := values[name]) is None else encode(value) for name, encode in statement.encoders]
        result, state = self._send(statement, sent, after)
        if state in sqlstates.STALE and self.pgconn.transaction_status == _IDLE:
            self._loaders.clear()  # it comes before the execution, so that it is safe to send again
            self.command("DEALLOCATE ALL")
            result, state = self._send(statement, sent, after)
        if state or result is None:
            self._fail(state, in_doubt=in_doubt and statement.writes)
        return self._read(statement, result)

    def run_many(
        self, statements: Sequence[tuple[Statement, Mapping[str, Any]]], *, after: Sequence[str] = ()
    ) -> list[Answer]:
        """Run statements of a transaction in one round trip, once each is prepared."""
        if after:
            after = self._sent_before(after, *(statement for statement, _ in statements))
        sending = []
        for statement, values in statements:
            sent = [None if (value := values[name]) is None else encode(value) for name, encode in statement.encoders]
            send, parameters, state = self._ready_to_send(statement, sent)
            if state:
                self._fail(state, in_doubt=False)
            sending.append((send, parameters))
        answers: list[PGresult] = []
        _, state = self._exchange(self._send_after, after, sending, answers=answers, statements=len(sending))
        if state:
            self._fail(state, in_doubt=False)
        results = answers[len(after) :]
        return [self._read(statement, result) for (statement, _), result in zip(statements, results, strict=True)]

    def command(self, sql: str, *, in_doubt: bool = False) -> Answer:
        """Run a command that has no parameters, or several. Its rows come as text."""
        result, state = self._exchange(self.pgconn.send_query, sql.encode())
        if state or result is None:
            self._fail(state, in_doubt=in_doubt)
        loaders = Transformer(ADAPTERS)
        loaders.set_pgresult(result)
        return answer_of(loaders, result)

    def _read(self, statement: Statement, result: PGresult) -> Answer:
        """Read an answer, by the loaders that are kept for its columns once they are known."""
        loaders = self._loaders.get(statement)
        if loaders is None:
            loaders = Transformer(ADAPTERS)
            loaders.set_pgresult(result)
            if self._prepares:  # else its columns may be of other types next time, and nobody would say so
                self._loaders[statement] = loaders
        else:
            loaders.set_pgresult(result, set_loaders=False)
        return answer_of(loaders, result)

    def _ready_to_send(
        self, statement: Statement, sent: list[bytes | None]
    ) -> tuple[Callable[..., None], tuple[Any, ...], str]:
        """Return how a statement is sent, prepared where it can be, and the SQLSTATE of a failure to prepare it."""
        if not self._prepares:
            parameters = (statement.text, sent, statement.oids, statement.formats, _BINARY)
            return self.pgconn.send_query_params, parameters, ""
        state = ""
        if statement not in self._loaders:
            _, state = self._exchange(self.pgconn.send_prepare, statement.key, statement.text, statement.oids)
            if not state:
                self._loaders[statement] = None  # noted before it runs, which may fail
        return self.pgconn.send_query_prepared, (statement.key, sent, statement.formats, _BINARY), state

    def _send(
        self, statement: Statement, sent: list[bytes | None], after: Sequence[str]
    ) -> tuple[PGresult | None, str]:
        """Send a statement, and return its answer: see _exchange."""
        if not after and statement in self._loaders and self._prepares:  # as nearly always
            send = self.pgconn.send_query_prepared
            return self._exchange(send, statement.key, sent, statement.formats, _BINARY)
        if after:
            after = self._sent_before(after, statement)
        send, parameters, state = self._ready_to_send(statement, sent)
        if state:
            return None, state
        if after:
            return self._exchange(self._send_after, after, [(send, parameters)])
        return self._exchange(send, *parameters)

    def _sent_before(self, after: Sequence[str], *statements: Statement) -> Sequence[str]:
        """Return what is yet to be sent ahead of statements: nothing, where one is to be prepared first.

        That may fail, as where the table is locked, and is to be undone with what it belongs to: so that comes before.
        """
        if not self._prepares or self._loaders.keys() >= set(statements):
            return after
        _, state = self._exchange(self._send_after, after, ())
        if state:
            self._fail(state, in_doubt=False)
        return ()

    def _send_after(
        self, commands: Sequence[str], sending: Sequence[tuple[Callable[..., None], tuple[Any, ...]]]
    ) -> None:
        """Send commands and then statements, all of them up to one Sync: the first that fails is the last that runs."""
        self.pgconn.enter_pipeline_mode()
        for command in commands:
            self.pgconn.send_query_params(command.encode(), None)
        for send, parameters in sending:
            send(*parameters)
        self.pgconn.pipeline_sync()

    def _exchange(
        self, send: Callable[..., None], *parameters: Any, answers: list[PGresult] | None = None, statements: int = 1
    ) -> tuple[PGresult | None, str]:
        """Send something and return its answer, and the SQLSTATE of its failure, empty where it succeeded.

        Of several in a pipeline, that is the answer of the first that failed, or else of the last; all of them are
        added to `answers`. Each statement may take its time.
        """
        heard: list[PGresult] = [] if answers is None else answers
        try:
            send(*parameters)
            give_up_at = time.monotonic() + statements * self._bound_seconds
            if self.pgconn.flush():  # larger than the socket's buffer
                self._flush(give_up_at)
            if self._hear(heard, give_up_at):
                return _verdict(heard)
        except psycopg.Error:  # without the server's "ready", a success may not be committed; its refusal stands
            self._hear_last_words(heard)
            result, state = _verdict(heard)
            return result, state or sqlstates.LOST
        except BaseException:  # a signal's: nobody knows whether the statement ran
            with suppress(psycopg.Error):
                self.cancel_safe(timeout=_CANCEL_SECONDS)
            self.close()
            raise
        return None, sqlstates.SILENT

    def _hear(self, heard: list[PGresult], give_up_at: float) -> bool:
        """Hear the answers to what was sent. Returns whether the server said in time that it is ready again."""
        pgconn = self.pgconn
        while self._readable(max(0.0, give_up_at - time.monotonic()) * 1_000):
            pgconn.consume_input()
            while not pgconn.is_busy():  # get_result would wait with the GIL held, deaf to signals
                result = pgconn.get_result()
                if result is None:
                    if not pgconn.pipeline_status:
                        return True
                elif result.status == _SYNC:
                    pgconn.exit_pipeline_mode()
                else:
                    heard.append(result)
        return False

    def _flush(self, give_up_at: float) -> None:
        """Write on as the socket takes it; read meanwhile, since the server may do the same."""
        while self.pgconn.flush():
            if not _writable(self.pgconn.socket, give_up_at - time.monotonic()):
                return  # the read that follows gives up too
            self.pgconn.consume_input()

    def _hear_last_words(self, heard: list[PGresult]) -> None:
        """Hear what the server said before it hung up, where it said why."""
        with suppress(psycopg.Error):
            while self.pgconn.status == ConnStatus.BAD and (result := self.pgconn.get_result()) is not None:
                heard.append(result)

    def _fail(self, state: str, *, in_doubt: bool) -> NoReturn:
        if self.pgconn.status == ConnStatus.BAD and not sqlstates.ends_connection(state):
            state = sqlstates.LOST
        if sqlstates.ends_connection(state):
            self._lost = state != sqlstates.SILENT  # of a silent server, all connections are silent
            self.close()
        raise sqlstates.failure(state, in_doubt=in_doubt)

    def _set_up(self, settings: Settings, catalog: Catalog) -> None:
        self._bound_seconds = settings.statement_timeout_seconds + _GRACE_SECONDS
        if settings.transaction_pooler:
            check_session(self, catalog)
        else:
            self.run(catalog["set_up_session"], session_values(settings))
            self._prepares = True
        self.epoch = settings.epoch
        if settings.epoch is None:
            self.run(catalog["note_timeline"], {})
            if not settings.transaction_pooler:  # a session to a primary keeps one timeline for life
                self.epoch = (self.run(catalog["read_epoch"], {}).row or (None,))[0]


def _verdict(heard: Sequence[PGresult]) -> tuple[PGresult | None, str]:
    """Return the first failure and its SQLSTATE, or else the last answer."""
    for result in heard:
        if result.status in _FAILED:
            state = result.error_field(DiagnosticField.SQLSTATE)
            return result, state.decode() if state else sqlstates.LOST
    return (heard[-1], "") if heard else (None, "")


def reading(socket: int) -> Callable[[float], object]:
    """Return what waits until a socket can be read, at most so many milliseconds, and says whether it can."""
    if not hasattr(select, "poll"):  # Windows, and where it is patched out
        return lambda milliseconds: select.select([socket], [], [], milliseconds / 1_000)[0]
    poller = select.poll()
    poller.register(socket, select.POLLIN)
    return poller.poll


def _writable(socket: int, seconds: float) -> bool:
    """Wait until the socket can be written or read, at most so many seconds, and say whether it can."""
    if not hasattr(select, "poll"):
        return any(select.select([socket], [socket], [], max(0.0, seconds)))
    poller = select.poll()
    poller.register(socket, select.POLLIN | select.POLLOUT)
    return bool(poller.poll(max(0.0, seconds) * 1_000))
