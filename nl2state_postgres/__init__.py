"""nl2state on PostgreSQL 14 and later, by psycopg 3."""

from nl2state_postgres.settings import Settings
from nl2state_postgres.store import PostgresStore, PostgresTenant, PostgresTransaction

__all__ = ["PostgresStore", "PostgresTenant", "PostgresTransaction", "Settings"]
