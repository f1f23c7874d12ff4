"""Pipelines: writes of a transaction whose results nobody waits for, made together."""

from __future__ import annotations

import marshal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, Unpack, cast

from nl2state.errors import StoreError, UsageError
from nl2state.idempotency import NO_OUTCOME, Attempt, NoOutcome
from nl2state.leases import Fence
from nl2state.lifecycle import DEFAULT_LIFECYCLE, Lifecycle
from nl2state.payload import Value
from nl2state.states import ExpectedRevision
from nl2state.views import CreateOptions, UpdateOptions

if TYPE_CHECKING:
    from nl2state.store import Transaction

__all__ = ["CollectedError", "LaterIdempotency", "LaterLeases", "LaterStates", "Pipeline"]


class LaterStates(Protocol):
    """The writes of FencedStateStore, without their results."""

    def create(
        self,
        record_id: str,
        value: Value,
        *,
        lifecycle: Lifecycle = DEFAULT_LIFECYCLE,
        **options: Unpack[CreateOptions],
    ) -> None:
        """Make a record that must be absent."""
        ...

    def update(
        self,
        record_id: str,
        value: Value,
        *,
        expected_revision: ExpectedRevision,
        lifecycle: Lifecycle = DEFAULT_LIFECYCLE,
        **options: Unpack[UpdateOptions],
    ) -> None:
        """Write a record at its expected revision."""
        ...

    def put(
        self,
        record_id: str,
        value: Value,
        *,
        lifecycle: Lifecycle = DEFAULT_LIFECYCLE,
        **options: Unpack[CreateOptions],
    ) -> None:
        """Write a record, whatever is there."""
        ...

    def delete(self, record_id: str, *, expected_revision: ExpectedRevision, fence: Fence | None = None) -> None:
        """Empty a record at its expected revision."""
        ...


class LaterLeases(Protocol):
    """The writes of LeaseStore that a transaction can make."""

    def release(self, fence: Fence) -> None:
        """Free a resource."""
        ...


class LaterIdempotency(Protocol):
    """The writes of IdempotencyStore that a transaction can make, without their results."""

    def complete(
        self,
        attempt: Attempt,
        outcome: Value | NoOutcome = NO_OUTCOME,
        *,
        outcome_fingerprint: str | None = None,
        fence: Fence | None = None,
    ) -> None:
        """Keep the outcome of an attempt."""
        ...

    def abandon(self, attempt: Attempt, *, fence: Fence | None = None) -> None:
        """End an attempt without an outcome."""
        ...

    def forget(self, key: str, *, fence: Fence | None = None) -> None:
        """Drop a key's outcome, or its attempt."""
        ...


class CollectedError(Exception):
    """What a backend's session raises in the place of a write, whose arguments are checked by then. For backends."""


_STATES: Final = frozenset({"create", "update", "put", "delete"})
_LEASES: Final = frozenset({"release"})
_IDEMPOTENCY: Final = frozenset({"complete", "abandon", "forget"})


class Pipeline:
    """Writes of a transaction that are made when its block ends: see Transaction.pipeline."""

    def __init__(self, checking: Transaction, making: Transaction) -> None:
        """Collect calls. On `checking` their arguments are checked, and then CollectedError is raised."""
        self._calls = _Calls()
        self.states = cast("LaterStates", _Later(checking.states, making.states, _STATES, self._calls))
        self.leases = cast("LaterLeases", _Later(checking.leases, making.leases, _LEASES, self._calls))
        self.idempotency = cast(
            "LaterIdempotency", _Later(checking.idempotency, making.idempotency, _IDEMPOTENCY, self._calls)
        )

    @contextmanager
    def collecting(self) -> Iterator[Self]:
        """Collect for the block. After it, nobody would make what is called. For backends."""
        try:
            yield self
        finally:
            self._calls.ended = True

    def make_one_by_one(self) -> None:
        """Make the calls in their order. The first that is refused raises its refusal. For backends."""
        for index, call in enumerate(self._calls.kept):
            try:
                call()
            except StoreError as error:
                error.index = index
                raise


class _Calls:
    """The calls of a pipeline, until its block ends."""

    def __init__(self) -> None:
        self.kept: list[Callable[[], object]] = []
        self.ended = False


class _Later:
    """The writes of one noun: a call of one is checked now, and kept with its values as they are now."""

    def __init__(self, checking: object, making: object, names: frozenset[str], calls: _Calls) -> None:
        self._checking = checking
        self._making = making
        self._names = names
        self._calls = calls

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name not in self._names:
            raise AttributeError(f"a pipeline has no {name}: its calls are writes, and return nothing")
        return partial(self._keep, name)

    def _keep(self, name: str, *arguments: Any, **options: Any) -> None:
        if self._calls.ended:
            raise UsageError("the pipeline has ended: its writes are collected in its block")
        try:
            getattr(self._checking, name)(*arguments, **options)
        except CollectedError:
            copied = [_copied(argument) for argument in arguments]
            copied_options = {option: _copied(value) for option, value in options.items()}
            self._calls.kept.append(partial(getattr(self._making, name), *copied, **copied_options))


def _copied(argument: Any) -> Any:
    """Return a list or an object as it is now: it was seen to be JSON."""
    return marshal.loads(marshal.dumps(argument)) if isinstance(argument, (list, dict)) else argument  # noqa: S302
