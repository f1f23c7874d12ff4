"""What an operator is told to do is enough."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from psycopg import conninfo

from nl2state import SchemaError, TenantScope, run_once
from nl2state_postgres import PostgresStore, Settings
from tests.docs.pages import text_of
from tests.servers import PostgresHarness, connect

_GRANTS, _ROLE_SETTINGS = re.findall(r"```sql\n(.*?)```", text_of("docs/operations.md"), re.DOTALL)

_PASSWORD = "of the test"  # where the server asks for one


@dataclass(frozen=True)
class Service:
    """A role of its own on a schema that another one made."""

    postgres: PostgresHarness
    owner: psycopg.Connection[Any]
    role: str
    dsn: str

    def told(self, statements: str) -> None:
        """Do what an operator is told to, for this role and schema."""
        own = statements.replace("shop_service", self.role).replace("shop", self.postgres.schema)
        self.owner.execute(own.encode())

    def do_all(self, **settings: Any) -> None:
        """Open the store as the role, and do what a service does."""
        given = Settings(clock=self.postgres.settings.clock, **settings)
        with PostgresStore.open(self.dsn, schema=self.postgres.schema, migrate=False, settings=given) as store:
            tenant = store.tenant(TenantScope.local())
            with tenant.hold("r", owner="a") as held, held.transaction() as tx:
                tx.states.put("r", 1)
                held.release(tx)
            run_once(tenant, "k", lambda _: None, request=None, result_ttl_seconds=60, attempt_ttl_seconds=60)
            tenant.states.delete("r", expected_revision=tenant.states.require("r").revision)
            self.postgres.advance(2 * 86_400)
            removed = store.system.retain()
            assert (removed.states, removed.leases, removed.idempotency) == (1, 1, 1)


@pytest.fixture
def service(postgres: PostgresHarness) -> Iterator[Service]:
    """Yield a role that may do nothing yet, save to ask the tests' clock."""
    role = f"service_{postgres.schema}"
    with connect(postgres.dsn) as owner:
        owner.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{_PASSWORD}'".encode())
        owner.execute(f"GRANT USAGE ON SCHEMA test_clock TO {role}".encode())
        owner.execute(f"GRANT SELECT ON test_clock.offsets TO {role}".encode())
        yield Service(postgres, owner, role, conninfo.make_conninfo(postgres.dsn, user=role, password=_PASSWORD))
        owner.execute(f"DROP OWNED BY {role}".encode())
        owner.execute(f"DROP ROLE {role}".encode())


def test_a_role_with_the_privileges_that_are_told_can_do_all_calls(service: Service) -> None:
    with pytest.raises(SchemaError):
        service.do_all()
    service.told(_GRANTS)
    service.do_all()
    with psycopg.connect(service.dsn) as own, pytest.raises(psycopg.errors.InsufficientPrivilege):
        own.execute(f"DROP TABLE {service.postgres.schema}.states".encode())


def test_a_role_with_the_settings_that_are_told_is_fit_for_a_pooler(service: Service) -> None:
    service.told(_GRANTS)
    service.told(_ROLE_SETTINGS)
    service.do_all(transaction_pooler=True)
