"""P9 and P10: a server is killed with -9 under load and started again; what was acknowledged is there."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from nl2state import (
    LeaseBusyError,
    OutcomeUnknownError,
    StoreTimeoutError,
    StoreUnavailableError,
    Tenant,
    TenantScope,
)
from nl2state.testing.harness import start, until
from nl2state.testing.histories import Event, violations
from nl2state_postgres import PostgresStore, Settings
from nl2state_postgres.embedded import EmbeddedPostgres

_WORKERS = 6
_CRASHES = 2
_AWAY = (StoreUnavailableError, StoreTimeoutError, OutcomeUnknownError)


class _Worker:
    """One thread at calls of every kind, on rows of its own, which knows what each of them has to be told."""

    def __init__(self, tenant: Tenant, number: int) -> None:
        self._tenant = tenant
        self._name = f"w{number}"
        self.rounds = 0
        self.failures = 0
        self.unknown = 0
        self.revision = tenant.states.create(self._name, 1).revision
        self._in_doubt = False
        self.pair = 0
        self.completed: dict[str, int] = {}
        self.events: list[Event] = []

    def run(self, over: threading.Event) -> None:
        while not over.is_set():
            for call in (self._update, self._write_pair, self._grant, self._complete):
                try:
                    call()
                except _AWAY as error:
                    self.failures += 1
                    self.unknown += isinstance(error, OutcomeUnknownError)
            self.rounds += 1

    def _update(self) -> None:
        """Write its record by its revision: a conflict would be a wrong answer, and is not caught."""
        self._read_back()
        self._in_doubt = True
        try:
            record = self._tenant.states.update(self._name, self.revision + 1, expected_revision=self.revision)
        except (StoreUnavailableError, StoreTimeoutError):
            self._in_doubt = False  # nothing of it was kept
            raise
        self._in_doubt = False
        self.revision += 1
        assert record.revision == self.revision

    def _read_back(self) -> None:
        """Resolve a write whose outcome is unknown: it was done once, or not."""
        if self._in_doubt:
            record = self._tenant.states.require(self._name)
            assert record.value == record.revision
            assert record.revision - self.revision in (0, 1)
            self.revision, self._in_doubt = record.revision, False

    def _write_pair(self) -> None:
        """Write two records in one transaction."""
        told = self.pair + 1
        with self._tenant.transaction() as tx:
            tx.states.put(f"{self._name}-one", told)
            with tx.transaction():
                tx.states.put(f"{self._name}-other", told)
        self.pair = told

    def _grant(self) -> None:
        """Take a lease, write with its fence, and release it. What a call that failed has left held is revoked."""
        resource, began = self._name, time.monotonic()
        try:
            lease = self._tenant.leases.acquire(resource, owner="a", ttl_seconds=600)
        except LeaseBusyError:
            assert self.failures > 0
            self._tenant.leases.revoke(resource)
            return
        self.events.append(Event("grant", resource, lease.fence.token, began, time.monotonic()))
        began = time.monotonic()
        self._tenant.states.put(f"{self._name}-fenced", lease.fence.token, fence=lease.fence)
        self.events.append(Event("write", resource, lease.fence.token, began, time.monotonic()))
        self._tenant.leases.release(lease.fence)

    def _complete(self) -> None:
        """Reserve a fresh key and complete it."""
        key = f"{self._name}-{self.rounds}"
        attempt = self._tenant.idempotency.reserve(
            key, request=key, result_ttl_seconds=600, attempt_ttl_seconds=600
        ).attempt
        self._tenant.idempotency.complete(attempt, self.rounds)
        self.completed[key] = self.rounds

    def judge(self) -> None:
        """See that all that was acknowledged is there, and nothing that was not asked for."""
        states, keys = self._tenant.states, self._tenant.idempotency
        self._read_back()
        record = states.require(self._name)
        assert (record.revision, record.value) == (self.revision, self.revision)
        one, other = states.require(f"{self._name}-one").value, states.require(f"{self._name}-other").value
        assert one == other
        assert one in (self.pair, self.pair + 1)
        for key, outcome in self.completed.items():
            again = keys.reserve(key, request=key, result_ttl_seconds=600, attempt_ttl_seconds=600)
            assert (again.completed, again.outcome) == (True, outcome)
        assert violations(self.events) == []


def test_what_was_acknowledged_outlives_a_server_that_is_killed_under_load() -> None:
    """Case 37: each call is told the truth, or that it is unknown; the store is not opened anew."""
    settings = Settings(checkout_timeout_seconds=1.0, connect_timeout_seconds=2.0, connections_max=_WORKERS)
    with EmbeddedPostgres() as server, PostgresStore.open(server.dsn, settings=settings) as store:
        over = threading.Event()
        workers = [_Worker(store.tenant(TenantScope.local()), number) for number in range(_WORKERS)]
        calls = [start(lambda worker=worker: worker.run(over)) for worker in workers]  # type: ignore[misc]  # bound at once

        def all_have(count: Callable[[_Worker], int], more: int) -> None:
            enough = [count(worker) + more for worker in workers]

            def go_on() -> bool:
                for call in calls:
                    if call.done:  # it failed: say how
                        call.result()
                return all(count(worker) >= least for worker, least in zip(workers, enough, strict=True))

            until(go_on, "the workers go on")

        all_have(lambda worker: worker.rounds, 5)
        for _ in range(_CRASHES):
            server.kill()
            all_have(lambda worker: worker.failures, 1)
            server.restart()
            all_have(lambda worker: worker.rounds, 5)
        over.set()
        for call in calls:
            call.result()
        for worker in workers:
            worker.judge()
