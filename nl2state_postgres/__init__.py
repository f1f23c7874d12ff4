"""nl2state on PostgreSQL 14 and later, by psycopg 3."""

try:
    from nl2state_postgres.borrowed import session_settings
    from nl2state_postgres.settings import Settings
    from nl2state_postgres.store import PostgresStore, PostgresTenant, PostgresTransaction
except ModuleNotFoundError as error:
    if error.name not in {"psycopg", "psycopg_pool"}:
        raise
    raise ModuleNotFoundError("nl2state_postgres needs psycopg: pip install 'nl2state[postgres]'") from None

__all__ = ["PostgresStore", "PostgresTenant", "PostgresTransaction", "Settings", "session_settings"]
