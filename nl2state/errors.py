"""What a caller may see raised.

    StoreError
    ├─ InvalidInputError (also a ValueError)
    │  └─ PayloadError
    ├─ UsageError                     a call in the wrong place
    ├─ ConflictError
    │  ├─ RevisionConflictError
    │  ├─ AlreadyExistsError
    │  ├─ NotFoundError
    │  ├─ TerminalError
    │  ├─ TransitionError
    │  └─ KeyConflictError
    ├─ BusyError                      retryable
    │  ├─ LeaseBusyError
    │  └─ AttemptInFlightError
    ├─ FencingRejectedError           a lease or an attempt that is not yours any more
    ├─ StoreUnavailableError          retryable
    ├─ StoreTimeoutError              retryable
    ├─ OutcomeUnknownError            it may have happened
    ├─ SchemaError
    ├─ SealingError
    └─ CorruptError

Each class has a stable `code` for logs and programs, and a truthful `retryable`: true says that the same call, sent
again later, can succeed and does no harm. The fields of an error are safe to log: none of them, nor the message, holds
a payload, a key, a record's id, a DSN, SQL, or a word of the driver's. `owner` is the opaque name that a holder gave
itself.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

__all__ = [
    "AlreadyExistsError",
    "AttemptInFlightError",
    "BusyError",
    "ConflictError",
    "CorruptError",
    "FencingRejectedError",
    "InvalidInputError",
    "KeyConflictError",
    "LeaseBusyError",
    "NotFoundError",
    "OutcomeUnknownError",
    "PayloadError",
    "RevisionConflictError",
    "SchemaError",
    "SealingError",
    "StoreError",
    "StoreTimeoutError",
    "StoreUnavailableError",
    "TerminalError",
    "TransitionError",
    "UsageError",
]


class StoreError(Exception):
    """Any refusal or failure of a store."""

    code: ClassVar[str] = "STORE_ERROR"
    retryable: ClassVar[bool] = False
    fields: ClassVar[tuple[str, ...]] = ()

    index: int | None
    """Of a call for many items: which of them it is about, from 0. None where it is about the call."""

    def __init__(self, message: str, *, index: int | None = None, **fields: Any) -> None:
        super().__init__(message)
        self.index = index
        unknown = fields.keys() - set(self.fields)
        if unknown:
            raise TypeError(f"{type(self).__name__} has no field {sorted(unknown)}")
        for name in self.fields:
            setattr(self, name, fields.get(name))

    def again(self) -> Self:
        """Return this error as it was made, without the traceback and context that it gathered."""
        return type(self)(self.args[0], **self._fields())

    def at(self, index: int) -> Self:
        """Return this error, again, as that of an item of a call for many."""
        error = self.again()
        error.index = index
        return error

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by message and fields, so that a task queue carries the error whole."""
        return _rebuild, (type(self), self.args[0], self._fields())

    def _fields(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("index", *self.fields)}


def _rebuild(kind: type[StoreError], message: str, fields: dict[str, Any]) -> StoreError:
    return kind(message, **fields)


class InvalidInputError(StoreError, ValueError):
    """An argument that no store takes. `field` names it; its value is not repeated. `limit` is the bound it broke."""

    code = "INVALID_INPUT"
    fields = ("field", "limit")
    field: str
    limit: float | None


class PayloadError(InvalidInputError):
    """A value that cannot be stored: not JSON, too deep, too large, or with a credential in it."""

    code = "INVALID_PAYLOAD"


class UsageError(StoreError):
    """A call in the wrong place: in a transaction that ended, on a store that is closed, out of its order."""

    code = "USAGE"


class ConflictError(StoreError):
    """The stored state does not allow the call. Read again and decide."""

    code = "CONFLICT"


class RevisionConflictError(ConflictError):
    """The record is not at the expected revision, or in the expected status: `revision` and `status` are its own."""

    code = "STATE_CONFLICT"
    fields = ("revision", "status")
    revision: int
    status: str


class AlreadyExistsError(ConflictError):
    """The record that was to be created exists, at `revision` and in `status`."""

    code = "ALREADY_EXISTS"
    fields = ("revision", "status")
    revision: int
    status: str


class NotFoundError(ConflictError):
    """No such record: it was never made, or it was deleted, or it expired."""

    code = "NOT_FOUND"


class TerminalError(ConflictError):
    """The record ended, at `revision` and in `status`, and is not written again."""

    code = "TERMINAL"
    fields = ("revision", "status")
    revision: int
    status: str


class TransitionError(ConflictError):
    """The lifecycle does not lead from the record's `status`, at `revision`, to the one that was asked for."""

    code = "TRANSITION"
    fields = ("revision", "status")
    revision: int
    status: str


class KeyConflictError(ConflictError):
    """The idempotency key is another request's, or another record's."""

    code = "KEY_CONFLICT"


class BusyError(StoreError):
    """Somebody else is at it.

    In `retry_after_seconds` they must be done, or can be replaced; 0 where only their open transaction is in the way.
    """

    code = "BUSY"
    retryable = True
    fields: ClassVar[tuple[str, ...]] = ("retry_after_seconds",)
    retry_after_seconds: float


class LeaseBusyError(BusyError):
    """The lease is held by `owner`; None where its grant, or its end, is not committed yet."""

    code = "LEASE_BUSY"
    fields = ("retry_after_seconds", "owner")
    owner: str | None


class AttemptInFlightError(BusyError):
    """Another attempt of the same request is being made."""

    code = "ATTEMPT_IN_FLIGHT"


class FencingRejectedError(StoreError):
    """A lease or an attempt that ran out, was released, revoked, or taken over. What it guards was not written."""

    code = "FENCING_REJECTED"


class StoreUnavailableError(StoreError):
    """The store cannot be reached, or ended the connection, or is overloaded. Nothing of the call was kept."""

    code = "STORE_UNAVAILABLE"
    retryable = True


class StoreTimeoutError(StoreError):
    """The call's time ran out, in a queue or behind a lock. Nothing of the call was kept."""

    code = "STORE_TIMEOUT"
    retryable = True


class OutcomeUnknownError(StoreError):
    """The answer was lost: the write may have happened or not. Read back before anything is done again."""

    code = "OUTCOME_UNKNOWN"


class SchemaError(StoreError):
    """The database's schema is missing, older or newer than this code, or this role may not migrate it."""

    code = "SCHEMA_MISMATCH"


class SealingError(StoreError):
    """A payload cannot be sealed or opened: no key, a wrong key, or it was changed."""

    code = "SEALING"


class CorruptError(StoreError):
    """What is stored cannot be read: not written by this library, damaged, or of a form that the model refuses."""

    code = "CORRUPT"
