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
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol, TypeAlias

import psycopg
from psycopg.adapt import AdaptersMap, Transformer
from psycopg.pq import ConnStatus, DiagnosticField, ExecStatus, Format, TransactionStatus

from nl2state.errors import CorruptError, InvalidInputError, StoreError, StoreUnavailableError, UsageError
from nl2state_postgres import sqlstates
from nl2state_postgres.catalog import Catalog, Statement
from nl2state_postgres.settings import Settings

if TYPE_CHECKING:
    from psycopg import abc
    from psycopg.pq.abc import PGresult

__all__ = [
    "ADAPTERS",
    "BEGIN",
    "UNREACHABLE",
    "Answer",
    "Connection",
    "Row",
    "Runner",
    "answer_of",
    "check_session",
    "conninfo_of",
    "milliseconds",
    "reading",
    "session_values",
]

Row: TypeAlias = tuple[Any, ...]
"""What a statement returns, in the order of its columns."""

BEGIN: Final = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
"""Whatever the role's or the database's defaults are: what a fence and a migration read has to be of now."""

ADAPTERS: Final = AdaptersMap(types=psycopg.postgres.types)
"""How values are sent and rows are read, whatever adapters a service registers, for all of psycopg too.

Times are in UTC.
"""

psycopg.postgres.register_default_adapters(ADAPTERS)

UNREACHABLE: Final = "the server cannot be reached, or refused the role or the database"
"""What is told where a connection cannot be made."""

_FAILED: Final = frozenset({ExecStatus.BAD_RESPONSE, ExecStatus.FATAL_ERROR, ExecStatus.PIPELINE_ABORTED})
_CANCEL_SECONDS: Final = 1.0
_GRACE_SECONDS: Final = 2.0
"""How much longer than the server's own bound on a statement its answer is waited for."""


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
        if state in sqlstates.STALE and self.pgconn.transaction_status == TransactionStatus.IDLE:
            self._loaders.clear()  # it comes before the execution, so that it is safe to send again
            self.command("DEALLOCATE ALL")
            result, state = self._send(statement, sent, after)
        if state or result is None:
            self._fail(state, in_doubt=in_doubt and statement.writes)
        loaders = self._loaders.get(statement)
        if loaders is None:
            loaders = Transformer(ADAPTERS)
            loaders.set_pgresult(result)
            if self._prepares:  # else its columns may be of other types next time, and nobody would say so
                self._loaders[statement] = loaders
        else:
            loaders.set_pgresult(result, set_loaders=False)
        return answer_of(loaders, result)

    def command(self, sql: str, *, in_doubt: bool = False) -> Answer:
        """Run a command that has no parameters, or several. Its rows come as text."""
        result, state = self._exchange(self.pgconn.send_query, sql.encode())
        if state or result is None:
            self._fail(state, in_doubt=in_doubt)
        loaders = Transformer(ADAPTERS)
        loaders.set_pgresult(result)
        return answer_of(loaders, result)

    def _send(
        self, statement: Statement, sent: list[bytes | None], after: Sequence[str]
    ) -> tuple[PGresult | None, str]:
        """Send a statement, and return its answer: see _exchange."""
        pgconn = self.pgconn
        send: Callable[..., None]
        parameters: tuple[Any, ...]
        if self._prepares:
            if statement not in self._loaders:
                result, state = self._exchange(pgconn.send_prepare, statement.key, statement.text, statement.oids)
                if state:
                    return result, state
                self._loaders[statement] = None  # noted before it runs, which may fail
            send, parameters = pgconn.send_query_prepared, (statement.key, sent, statement.formats, Format.BINARY)
        else:
            send = pgconn.send_query_params
            parameters = (statement.text, sent, statement.oids, statement.formats, Format.BINARY)
        if after:
            return self._exchange(self._send_after, after, send, parameters)
        return self._exchange(send, *parameters)

    def _send_after(self, commands: Sequence[str], send: Callable[..., None], parameters: tuple[Any, ...]) -> None:
        """Send commands and then a statement, all of them up to one Sync: the first that fails is the last that ran."""
        self.pgconn.enter_pipeline_mode()
        for command in commands:
            self.pgconn.send_query_params(command.encode(), None)
        send(*parameters)
        self.pgconn.pipeline_sync()

    def _exchange(self, send: Callable[..., None], *parameters: Any) -> tuple[PGresult | None, str]:
        """Send something and return its answer, and the SQLSTATE of its failure, empty where it succeeded.

        Of several in a pipeline, that is the answer of the first that failed, or else of the last.
        """
        pgconn = self.pgconn
        answer: PGresult | None = None
        try:
            send(*parameters)
            give_up_at = time.monotonic() + self._bound_seconds
            if pgconn.flush():  # larger than the socket's buffer
                self._flush(give_up_at)
            while self._readable(max(0.0, give_up_at - time.monotonic()) * 1_000):
                pgconn.consume_input()
                while not pgconn.is_busy():  # get_result would wait with the GIL held, deaf to signals
                    result = pgconn.get_result()
                    if result is None:
                        if pgconn.pipeline_status:  # it parts the answers
                            continue
                        return answer, "" if answer is None else _state_of(answer)
                    if result.status == ExecStatus.PIPELINE_SYNC:
                        pgconn.exit_pipeline_mode()
                    elif answer is None or answer.status not in _FAILED:
                        answer = result
        except psycopg.Error:  # without the server's "ready", a success may not be committed; its refusal stands
            answer = self._last_words(answer)
            return answer, (answer and _state_of(answer)) or sqlstates.LOST
        except BaseException:  # a signal's: nobody knows whether the statement ran
            with suppress(psycopg.Error):
                self.cancel_safe(timeout=_CANCEL_SECONDS)
            self.close()
            raise
        return None, sqlstates.SILENT

    def _flush(self, give_up_at: float) -> None:
        """Write on as the socket takes it; read meanwhile, since the server may do the same."""
        while self.pgconn.flush():
            if not _writable(self.pgconn.socket, give_up_at - time.monotonic()):
                return  # the read that follows gives up too
            self.pgconn.consume_input()

    def _last_words(self, answer: PGresult | None) -> PGresult | None:
        """Return what the server said before it hung up, where it said why."""
        with suppress(psycopg.Error):
            while self.pgconn.status == ConnStatus.BAD and (result := self.pgconn.get_result()) is not None:
                answer = result if answer is None or answer.status not in _FAILED else answer
        return answer

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


def _state_of(result: PGresult) -> str:
    if result.status not in _FAILED:
        return ""
    state = result.error_field(DiagnosticField.SQLSTATE)
    return state.decode() if state else sqlstates.LOST


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
