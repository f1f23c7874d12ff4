"""nl2data-workflow-postgres: its store as its README opens it, with a pool of as many connections as threads.

It keeps workflow states of one form, and no value of a caller's own: the states here are as large as the value, and as
plain as such a state can be. They are made before the clock starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from nl2data_core.workflow import WorkflowState, WorkflowStatus
from nl2data_core.workflow.durable import IdempotencyStatus, serialize_snapshot
from nl2data_core.workflow.models import WorkflowEvent
from nl2data_workflow_postgres import PostgreSQLStateStore, WorkflowPostgresConfig

from tests.benchmarks.peers.lane import RECORDS, VALUE_BYTES, PeerLane
from tests.benchmarks.sides import OWNER, TTL_SECONDS

__all__ = ["open_lanes"]

_REQUEST = "request-1"
_OUTCOME = f"sha256:{0:064}"


@contextmanager
def open_lanes(dsn: str, names: Sequence[str]) -> Iterator[list[PeerLane]]:
    """Yield a lane for each name: they share one store."""
    config = WorkflowPostgresConfig(
        namespace="workflow",
        pool_size=len(names),
        lease_ttl_seconds=TTL_SECONDS,
    )
    store = PostgreSQLStateStore(dsn=dsn, config=config)
    try:
        yield [_Arguments(store, name).lane for name in names]
    finally:
        store.close()


class RefusedError(Exception):
    """A call found what it should not, and said so by its answer."""


class _Side:
    def __init__(self, store: Any) -> None:
        self._store = store

    def create(self, state: Any) -> object:
        return self._store.create(state)

    def get(self, workflow_id: str) -> object:
        return _found(self._store.get(workflow_id))

    def get_revision(self, workflow_id: str) -> object:
        return _found(self._store.get_revision(workflow_id))

    def update(self, state: Any, revision: int) -> object:
        return self._store.update(state.workflow_id, WorkflowStatus.CREATED, state, expected_version=revision)

    def update_fenced(self, state: Any, revision: int, lease: Any) -> object:
        return self._store.update(
            state.workflow_id,
            WorkflowStatus.CREATED,
            state,
            expected_version=revision,
            owner_id=lease.owner_id,
            fencing_token=lease.fencing_token,
        )

    def acquire_lease(self, workflow_id: str) -> Any:
        return self._store.acquire_lease(workflow_id, owner_id=OWNER, ttl_seconds=TTL_SECONDS)

    def renew_lease(self, lease: Any) -> object:
        return self._store.renew_lease(lease.workflow_id, owner_id=lease.owner_id, fencing_token=lease.fencing_token)

    def release_lease(self, lease: Any) -> object:
        return _found(
            self._store.release_lease(lease.workflow_id, owner_id=lease.owner_id, fencing_token=lease.fencing_token)
            or None
        )

    def inspect_lease(self, workflow_id: str) -> object:
        return _found(self._store.inspect_lease(workflow_id))

    def reserve_idempotency(self, key: str) -> Any:
        expires_at = datetime.now(UTC) + timedelta(seconds=TTL_SECONDS)
        return self._store.reserve_idempotency(key, request_id=_REQUEST, workflow_id=key, expires_at=expires_at)

    def replay(self, key: str) -> object:
        record = self.reserve_idempotency(key)
        return _found(record if record.status is IdempotencyStatus.COMPLETED else None)

    def complete_idempotency(self, key: str) -> object:
        return self._store.complete_idempotency(key, workflow_id=key, terminal_outcome_fingerprint=_OUTCOME)

    def get_idempotency(self, key: str) -> object:
        return _found(self._store.get_idempotency(key))


def _found(answer: object) -> object:
    if answer is None:
        raise RefusedError("it is not there, or is another's")
    return answer


class _Arguments:
    """The workflows, leases and keys of a lane."""

    def __init__(self, store: Any, name: str) -> None:
        self._side = _Side(store)
        self._names = (f"x-{name}-{number:08}" for number in count())
        self._turns = count()
        self._states = [_state(f"record-{name}-{number:04}") for number in range(RECORDS)]
        self._revisions = dict.fromkeys((state.workflow_id for state in self._states), 1)
        self._leases: dict[str, Any] = {}
        for state in self._states:
            self._side.create(state)
        self._lease = self._side.acquire_lease(f"resource-{name}")
        self._key = f"key-{name}"
        self._side.reserve_idempotency(self._key)
        self._side.complete_idempotency(self._key)
        self.lane = PeerLane(self._side, self._calls())

    def _calls(self) -> dict[str, Callable[[], tuple[Any, ...]]]:
        return {
            "create": lambda: (_state(next(self._names)),),
            "get": lambda: (self._next().workflow_id,),
            "get_revision": lambda: (self._next().workflow_id,),
            "update": self._written,
            "update_fenced": self._fenced,
            "acquire_lease": lambda: (next(self._names),),
            "renew_lease": lambda: (self._lease,),
            "release_lease": lambda: (self._side.acquire_lease(next(self._names)),),
            "inspect_lease": lambda: (self._lease.workflow_id,),
            "reserve_idempotency": lambda: (next(self._names),),
            "replay": lambda: (self._key,),
            "complete_idempotency": lambda: (self._side.reserve_idempotency(next(self._names)).idempotency_key,),
            "get_idempotency": lambda: (self._key,),
        }

    def _next(self) -> Any:
        return self._states[next(self._turns) % RECORDS]

    def _written(self) -> tuple[Any, int]:
        """Return a state, and the revision that it will have when it is its turn."""
        state = self._next()
        self._revisions[state.workflow_id] += 1
        return state, self._revisions[state.workflow_id] - 1

    def _fenced(self) -> tuple[Any, int, Any]:
        """Return the same, with the lease of the workflow itself: it knows no other fence."""
        state, revision = self._written()
        if state.workflow_id not in self._leases:
            self._leases[state.workflow_id] = self._side.acquire_lease(state.workflow_id)
        return state, revision, self._leases[state.workflow_id]


def _state(workflow_id: str) -> Any:
    return _TEMPLATE.model_copy(update={"workflow_id": workflow_id})


def _template() -> Any:
    """Return a state whose snapshot is as large as the value: one event, and what is missing in a string of it."""

    def padded(text: str) -> Any:
        event = WorkflowEvent(
            event_id="event-1",
            workflow_id="record",
            from_status=WorkflowStatus.CREATED,
            to_status=WorkflowStatus.QUEUED,
            metadata={"note": text},
        )
        return WorkflowState(workflow_id=f"record-8-0-{0:04}", request_id=_REQUEST, events=(event,))

    return padded("x" * (VALUE_BYTES - len(serialize_snapshot(padded("")))))


_TEMPLATE = _template()
