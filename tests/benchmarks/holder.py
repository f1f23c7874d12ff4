"""A process that holds a lease until it is harmed, or takes it over then. JSON lines on stdin tell it what to do."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from nl2state import ANY_REVISION, StoreError, Tenant, TenantScope
from nl2state_postgres import PostgresStore
from nl2state_postgres.demo.serving import TTL_SECONDS, Charge
from nl2state_postgres.demo.worker import SETTINGS
from nl2state_postgres.embedded import die_with_parent

_WAIT_SECONDS = 60.0  # far above the bound, so that a delay beyond it is measured and not refused


def main() -> None:
    """Serve one process's part. The parent's process id is argv[1]; the first line on stdin is the charge."""
    die_with_parent(signal.SIGKILL, parent_pid=int(sys.argv[1]))
    charge = Charge(**_heard())
    with PostgresStore.open(charge.dsn, schema=charge.schema, migrate=False, settings=SETTINGS) as store:
        tenant = store.tenant(TenantScope.local())
        _tell(ready=True)
        for line in sys.stdin:
            _do(tenant, charge.name, json.loads(line))


def _do(tenant: Tenant, name: str, told: dict[str, Any]) -> None:
    resource: str = told["resource"]
    match told["do"]:
        case "make":
            tenant.states.create(resource, "made")
            _tell(made=True)
        case "hold":
            try:
                _hold(tenant, name, resource, in_transaction=told["in_transaction"])
            except StoreError as error:
                _tell(late=error.code)
            else:
                _tell(late="COMMITTED")
        case "take over":
            lease = tenant.leases.acquire(resource, owner=name, ttl_seconds=_WAIT_SECONDS, wait_seconds=_WAIT_SECONDS)
            _tell(granted=True)
            tenant.states.update(resource, name, expected_revision=ANY_REVISION, fence=lease.fence)
            _tell(written=True)
        case "read":
            _tell(value=tenant.states.require(resource).value)


def _hold(tenant: Tenant, name: str, resource: str, *, in_transaction: bool) -> None:
    """Hold the lease, say so, and write when it is told to go on: which is too late, where it was harmed meanwhile."""
    with tenant.hold(resource, owner=name, ttl_seconds=TTL_SECONDS) as held:
        if in_transaction:
            with held.transaction() as transaction:
                transaction.states.update(resource, name, expected_revision=ANY_REVISION)
                _tell(holding=True)
                _heard()
        else:
            _tell(holding=True)
            _heard()
            tenant.states.update(resource, name, expected_revision=ANY_REVISION, fence=held.fence)


def _tell(**message: Any) -> None:
    os.write(1, json.dumps(message).encode() + b"\n")


def _heard() -> dict[str, Any]:
    message: dict[str, Any] = json.loads(sys.stdin.readline())
    return message


if __name__ == "__main__":
    main()
