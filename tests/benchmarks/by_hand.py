"""The same calls as one would write them for one service, with psycopg alone, and careful to be fast.

A connection and a cursor a thread, prepared statements, binary results as tuples, JSON by the codec that it is given.
No pool, no checks of what is written (but the codec's), no records, no errors of its own. Each call is one statement
and one round trip, as ours are; a write returns what only the server knows. The tables are made by our migrations, in a
schema of their own, so that both sides have the same columns, indexes and storage settings; the session is set up by
our statement.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from typing import Any, TypeAlias
from uuid import UUID

import psycopg

from nl2state import TenantScope
from nl2state_postgres import Settings
from nl2state_postgres.catalog import Catalog
from tests.benchmarks.codec import STDLIB, Codec
from tests.benchmarks.durability import sessions
from tests.benchmarks.sides import OWNER, PAGE_SIZE, STATUS, TTL_SECONDS, VALUE

__all__ = ["GET", "ByHand", "connect", "open_by_hand"]

_JSON = 1  # a payload's encoding and format, and an application's first schema version
_RECORD = """revision, status, is_terminal, schema_version, request_id, parent_id, created_at, updated_at, expires_at,
       payload"""
_LIVE = "deleted_at IS NULL AND (expires_at IS NULL OR expires_at > now())"

GET = f"SELECT {_RECORD} FROM states WHERE scope = $1 AND record_id = $2 AND {_LIVE}"
"""What `get` runs."""

_GET_REVISION = f"SELECT revision FROM states WHERE scope = $1 AND record_id = $2 AND {_LIVE}"
_LIST = f"""
SELECT record_id, {_RECORD} FROM states
 WHERE scope = $1 AND record_id > $2 AND {_LIVE} ORDER BY record_id LIMIT {PAGE_SIZE}
"""
_INSERT_RECORD = f"""
INSERT INTO states AS s (scope, record_id, revision, status, is_terminal, schema_version, payload, payload_encoding,
       payload_format, write_id, created_at, updated_at)
VALUES ($1, $2, 1, $3, false, {_JSON}, $4, {_JSON}, {_JSON}, gen_random_uuid(), now(), now())
ON CONFLICT (scope, record_id) DO UPDATE
   SET revision = s.revision + 1, payload = excluded.payload, updated_at = now(), deleted_at = NULL, ended_at = NULL"""
_CREATE = f"{_INSERT_RECORD} WHERE s.deleted_at IS NOT NULL OR s.expires_at <= now() RETURNING revision, created_at"
_PUT = f"{_INSERT_RECORD} WHERE NOT s.is_terminal RETURNING revision, updated_at"
_UPDATE = f"""
UPDATE states SET revision = revision + 1, payload = $4, updated_at = now()
 WHERE scope = $1 AND record_id = $2 AND revision = $3 AND NOT is_terminal AND {_LIVE}
RETURNING revision, updated_at
"""
_UPDATE_FENCED = f"""
WITH held AS (SELECT FROM leases
       WHERE scope = $1 AND resource = $5 AND owner = $6 AND token = $7 AND expires_at > now() FOR KEY SHARE)
UPDATE states SET revision = revision + 1, payload = $4, updated_at = now()
 WHERE scope = $1 AND record_id = $2 AND revision = $3 AND NOT is_terminal AND {_LIVE} AND EXISTS (SELECT FROM held)
RETURNING revision, updated_at
"""
_DELETE = f"""
UPDATE states SET revision = revision + 1, payload = NULL, updated_at = now(), deleted_at = now(), ended_at = now()
 WHERE scope = $1 AND record_id = $2 AND revision = $3 AND {_LIVE}
RETURNING revision
"""
_ACQUIRE = """
INSERT INTO leases AS l (scope, resource, owner, token, turn, ttl_seconds, write_id, acquired_at, expires_at)
VALUES ($1, $2, $3, 1, gen_random_uuid(), $4, gen_random_uuid(), now(), now() + make_interval(secs => $4))
ON CONFLICT (scope, resource) DO UPDATE
   SET owner = excluded.owner, token = l.token + 1, turn = excluded.turn, ttl_seconds = excluded.ttl_seconds,
       acquired_at = excluded.acquired_at, expires_at = excluded.expires_at
 WHERE l.owner IS NULL OR l.expires_at <= now()
RETURNING token, acquired_at, expires_at
"""
_RENEW = """
UPDATE leases SET expires_at = now() + make_interval(secs => ttl_seconds)
 WHERE scope = $1 AND resource = $2 AND owner = $3 AND token = $4 AND expires_at > now()
RETURNING expires_at
"""
# `turn` makes it a key update, so that it waits for open fenced writes: without it, FOR KEY SHARE guards nothing
_RELEASE = """
UPDATE leases SET owner = NULL, turn = gen_random_uuid(), expires_at = now()
 WHERE scope = $1 AND resource = $2 AND owner = $3 AND token = $4
RETURNING token
"""
_INSPECT = (
    "SELECT owner, token, acquired_at, expires_at, expires_at <= now() FROM leases WHERE scope = $1 AND resource = $2"
)
_RESERVE = """
INSERT INTO keys AS k (scope, key, fingerprint, attempt, write_id, attempt_ttl_seconds, result_ttl_seconds, reserved_at,
       claim_until, expires_at)
VALUES ($1, $2, $3, 1, gen_random_uuid(), $4, $5, now(), now() + make_interval(secs => $4),
       now() + make_interval(secs => $5))
ON CONFLICT (scope, key) DO UPDATE
   SET attempt = k.attempt + 1, fingerprint = excluded.fingerprint, attempt_ttl_seconds = excluded.attempt_ttl_seconds,
       result_ttl_seconds = excluded.result_ttl_seconds, reserved_at = excluded.reserved_at,
       claim_until = excluded.claim_until, completed_at = NULL, outcome = NULL, expires_at = excluded.expires_at
 WHERE k.expires_at <= now()
    OR (k.completed_at IS NULL AND k.claim_until <= now() AND k.fingerprint = excluded.fingerprint)
RETURNING attempt
"""
_RESERVED = "SELECT fingerprint, completed_at, claim_until, outcome FROM keys WHERE scope = $1 AND key = $2"
_COMPLETE = """
UPDATE keys SET completed_at = now(), outcome = $4, expires_at = now() + make_interval(secs => result_ttl_seconds)
 WHERE scope = $1 AND key = $2 AND attempt = $3 AND completed_at IS NULL AND expires_at > now()
RETURNING attempt
"""
_GET_KEY = """
SELECT attempt, record_id, reserved_at, claim_until, completed_at, expires_at, outcome FROM keys
 WHERE scope = $1 AND key = $2 AND expires_at > now()
"""

Row: TypeAlias = tuple[Any, ...]
Held: TypeAlias = tuple[str, str, int]  # resource, owner, token
Attempted: TypeAlias = tuple[str, int]  # key, attempt


class RefusedError(Exception):
    """A call found what it should not."""


@contextmanager
def open_by_hand(
    dsn: str, schema: str, threads: int, *, codec: Codec = STDLIB, durable: bool = True
) -> Iterator[list[ByHand]]:
    """Yield a side for each thread, with a connection of its own."""
    with ExitStack() as connections:
        yield [ByHand(connections.enter_context(connect(dsn, schema, durable=durable)), codec) for _ in range(threads)]


def connect(dsn: str, schema: str, *, durable: bool = True) -> psycopg.Connection[Row]:
    """Open a connection whose session is set up as the library's are; its commits wait for the disk if `durable`."""
    settings = Settings()
    timeouts = {
        "idle_timeout": f"{settings.transaction_idle_seconds:.0f}s",
        "lock_timeout": f"{settings.lock_timeout_seconds:.0f}s",
        "statement_timeout": f"{settings.statement_timeout_seconds:.0f}s",
    }
    with sessions(durable=durable):
        set_up = Catalog.load(schema=schema, clock=settings.clock)["set_up_session"]
    connection = psycopg.connect(
        dsn,
        autocommit=True,
        cursor_factory=psycopg.RawCursor,
        application_name="nl2state benchmark",
        client_encoding="UTF8",
    )
    connection.execute(set_up.sql, [timeouts[name] for name in set_up.parameters])
    connection.execute("SELECT set_config('search_path', $1, false)", [schema])
    return connection


class ByHand:
    """A side. What its methods do is Side's."""

    def __init__(self, connection: psycopg.Connection[Row], codec: Codec = STDLIB) -> None:
        self._connection = connection
        self._dumps, self._loads, self._digest = codec
        self._cursor = connection.cursor(binary=True)
        self._scope = TenantScope.local().uuid

    def get(self, record_id: str) -> object:
        *columns, payload = self._row(GET, self._scope, record_id)
        return columns, self._loads(payload)

    def get_revision(self, record_id: str) -> object:
        return self._row(_GET_REVISION, self._scope, record_id)[0]

    def list(self, after: str) -> object:
        self._cursor.execute(_LIST, (self._scope, after), prepare=True)
        return [(columns, self._loads(payload)) for *columns, payload in self._cursor.fetchall()]

    def create(self, record_id: str) -> object:
        return self._row(_CREATE, self._scope, record_id, STATUS, self._dumps(VALUE))

    def update(self, record_id: str, revision: int) -> object:
        return self._row(_UPDATE, self._scope, record_id, revision, self._dumps(VALUE))

    def update_fenced(self, record_id: str, revision: int, fence: Held) -> object:
        return self._row(_UPDATE_FENCED, self._scope, record_id, revision, self._dumps(VALUE), *fence)

    def put(self, record_id: str) -> object:
        return self._row(_PUT, self._scope, record_id, STATUS, self._dumps(VALUE))

    def delete(self, record_id: str, revision: int) -> object:
        return self._row(_DELETE, self._scope, record_id, revision)[0]

    def acquire(self, resource: str) -> Held:
        token, _, _ = self._row(_ACQUIRE, self._scope, resource, OWNER, TTL_SECONDS)
        return resource, OWNER, token

    def renew(self, fence: Held) -> object:
        expires_at: datetime = self._row(_RENEW, self._scope, *fence)[0]
        return expires_at

    def release(self, fence: Held) -> object:
        return self._row(_RELEASE, self._scope, *fence)[0]

    def inspect(self, resource: str) -> object:
        return self._row(_INSPECT, self._scope, resource)

    def reserve(self, key: str) -> Attempted:
        """Write first: the fastest way where most keys are new. One that is not would be looked at next."""
        fingerprint = self._digest(VALUE)
        return key, self._row(_RESERVE, self._scope, key, fingerprint, TTL_SECONDS, TTL_SECONDS)[0]

    def replay(self, key: str) -> object:
        """Look first: the fastest way where most keys are completed. One that is not there would be written next."""
        fingerprint = self._digest(VALUE)
        kept, completed_at, _, outcome = self._row(_RESERVED, self._scope, key)
        if kept != fingerprint or completed_at is None:
            raise RefusedError("the key is another request's, or is not completed")
        return self._loads(outcome)

    def complete(self, attempt: Attempted) -> object:
        return self._row(_COMPLETE, self._scope, *attempt, self._dumps(VALUE))[0]

    def get_key(self, key: str) -> object:
        *columns, outcome = self._row(_GET_KEY, self._scope, key)
        return columns, self._loads(outcome)

    def transaction(self, record_id: str, revision: int, attempt: Attempted, fence: Held) -> object:
        """Fence the update alone: it locks the lease until the commit, for the completion too."""
        with self._connection.transaction():
            self.update_fenced(record_id, revision, fence)
            self.complete(attempt)
        return None

    def _row(self, sql: str, *parameters: UUID | str | bytes | float) -> Row:
        row = self._cursor.execute(sql, parameters, prepare=True).fetchone()
        if row is None:
            raise RefusedError("no row matched")
        return row
