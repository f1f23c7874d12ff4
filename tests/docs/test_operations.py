"""What an operator is told to do is enough."""

from __future__ import annotations

import re

import psycopg
import pytest
from psycopg import conninfo

from nl2state import SchemaError, TenantScope, run_once
from nl2state_postgres import PostgresStore, Settings
from tests.docs.pages import text_of
from tests.servers import PostgresHarness, connect

_GRANTS = re.findall(r"```sql\n(.*?)```", text_of("docs/operations.md"), re.DOTALL)[0]

_PASSWORD = "of the test"  # where the server asks for one


def test_a_role_with_the_privileges_that_are_told_can_do_all_calls(postgres: PostgresHarness) -> None:
    role = f"service_{postgres.schema}"
    granted = _GRANTS.replace("shop_service", role).replace("shop", postgres.schema)
    with connect(postgres.dsn) as owner:
        owner.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{_PASSWORD}'".encode())
        try:
            owner.execute(f"GRANT USAGE ON SCHEMA test_clock TO {role}; GRANT SELECT ON test_clock.offsets TO {role}")
            dsn = conninfo.make_conninfo(postgres.dsn, user=role, password=_PASSWORD)
            with pytest.raises(SchemaError):
                _do_all(dsn, postgres)
            owner.execute(granted.encode())
            _do_all(dsn, postgres)
            with psycopg.connect(dsn) as service, pytest.raises(psycopg.errors.InsufficientPrivilege):
                service.execute(f"DROP TABLE {postgres.schema}.states".encode())
        finally:
            owner.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def _do_all(dsn: str, postgres: PostgresHarness) -> None:
    settings = Settings(clock=postgres.settings.clock, transaction_idle_seconds=5)
    with PostgresStore.open(dsn, schema=postgres.schema, migrate=False, settings=settings) as store:
        tenant = store.tenant(TenantScope.local())
        with tenant.hold("r", owner="a") as held, held.transaction() as tx:
            tx.states.put("r", 1)
            held.release(tx)
        run_once(tenant, "k", lambda _: None, request=None, result_ttl_seconds=60, attempt_ttl_seconds=60)
        tenant.states.delete("r", expected_revision=tenant.states.require("r").revision)
        postgres.advance(2 * 86_400)
        removed = store.system.retain()
        assert (removed.states, removed.leases, removed.idempotency) == (1, 1, 1)
