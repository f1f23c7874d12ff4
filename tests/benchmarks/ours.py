"""The calls by the library."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from nl2state import Attempt, Fence, StateRecord, TenantScope
from nl2state_postgres import PostgresStore, PostgresTenant, Settings
from tests.benchmarks.durability import sessions
from tests.benchmarks.sides import OWNER, PAGE_SIZE, TTL_SECONDS, VALUE

__all__ = ["Ours", "open_ours", "open_tenant"]


@contextmanager
def open_ours(
    dsn: str, schema: str, threads: int, *, connections: int | None = None, durable: bool = True
) -> Iterator[list[Ours]]:
    """Yield a side for each thread: they share one store, of as many connections unless another number is given.

    Its commits wait for the disk if `durable`.
    """
    with open_tenant(dsn, schema, threads if connections is None else connections, durable=durable) as tenant:
        yield [Ours(tenant) for _ in range(threads)]


@contextmanager
def open_tenant(dsn: str, schema: str, connections: int, *, durable: bool = True) -> Iterator[PostgresTenant]:
    """Yield a tenant of a store of its own, whose commits wait for the disk if `durable`."""
    settings = Settings(connections_min=connections, connections_max=connections)
    with sessions(durable=durable):
        opened = PostgresStore.open(dsn, schema=schema, migrate=False, settings=settings)
    with opened as store:
        yield store.tenant(TenantScope.local())


class Ours:
    """A side. What its methods do is Side's."""

    def __init__(self, tenant: PostgresTenant) -> None:
        self._tenant = tenant
        self._states = tenant.states
        self._leases = tenant.leases
        self._keys = tenant.idempotency

    def get(self, record_id: str) -> StateRecord[Any]:
        return self._states.require(record_id)

    def get_revision(self, record_id: str) -> object:
        return self._states.get_revision(record_id)

    def list(self, after: str) -> object:
        return self._states.list(after=after, limit=PAGE_SIZE)

    def create(self, record_id: str) -> object:
        return self._states.create(record_id, VALUE)

    def update(self, record_id: str, revision: int) -> object:
        return self._states.update(record_id, VALUE, expected_revision=revision)

    def update_fenced(self, record_id: str, revision: int, fence: Fence) -> object:
        return self._states.update(record_id, VALUE, expected_revision=revision, fence=fence)

    def put(self, record_id: str) -> object:
        return self._states.put(record_id, VALUE)

    def delete(self, record_id: str, revision: int) -> object:
        return self._states.delete(record_id, expected_revision=revision)

    def acquire(self, resource: str) -> Fence:
        return self._leases.acquire(resource, owner=OWNER, ttl_seconds=TTL_SECONDS).fence

    def renew(self, fence: Fence) -> object:
        return self._leases.renew(fence)

    def release(self, fence: Fence) -> object:
        self._leases.release(fence)
        return None

    def inspect(self, resource: str) -> object:
        return self._leases.inspect(resource)

    def reserve(self, key: str) -> Attempt:
        return self._keys.reserve(
            key, request=VALUE, result_ttl_seconds=TTL_SECONDS, attempt_ttl_seconds=TTL_SECONDS
        ).attempt

    def replay(self, key: str) -> object:
        return self._keys.reserve(
            key, request=VALUE, result_ttl_seconds=TTL_SECONDS, attempt_ttl_seconds=TTL_SECONDS
        ).outcome

    def complete(self, attempt: Attempt) -> object:
        self._keys.complete(attempt, VALUE)
        return None

    def get_key(self, key: str) -> object:
        return self._keys.get(key)

    def transaction(self, record_id: str, revision: int, attempt: Attempt, fence: Fence) -> object:
        with self._tenant.transaction(fence=fence) as transaction:
            transaction.states.update(record_id, VALUE, expected_revision=revision)
            transaction.idempotency.complete(attempt, VALUE)
        return None
