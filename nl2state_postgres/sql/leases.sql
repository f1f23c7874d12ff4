-- The lock protocol. What may run beside what is said by the strength of the lock on the lease's row:
--   a fenced write      FOR KEY SHARE: "this grant stays until I commit"
--   renew               an update that is no key update: it does not wait for open fenced writes
--   release, revoke,    an update that changes `turn`, a key update: they wait for open fenced writes, and when they
--     takeover          have committed, no older token can commit; those that may not touch another grant, or read the
--                       clock after the wait, lock the row FOR UPDATE first
--   acquire, when free  a guarded upsert that is no key update
-- `turn` is needed: FOR KEY SHARE on a row version that a renewal replaced walks the chain of versions without checking
-- them again, and stops only at a key update. An update after FOR UPDATE is recorded as one only while no other locker
-- shares the row; one that changes a column of a unique index always is. docs/decisions/0001-lease-lock-protocol.md
--
-- A grant's token is the greater of the row's token + 1 and FIRST_TOKEN: the epoch in the high bits, the milliseconds since
-- 2025 in the low 41. So it rises within the life of a row whatever the clock does, and over sweeping, restore, upgrade and
-- fail-over. It stays below 2^53 for 4,095 epochs, and so survives JSON.

-- name: acquire_lease
-- Grants a lease that is new or free. A held one is seen, and not locked. Returns: one row or none.
-- Lost: read_back_lease, sent again.
WITH t AS MATERIALIZED (SELECT {clock} AS at)
INSERT INTO {schema}.leases AS l (scope, resource, owner, token, turn, ttl_seconds, metadata, write_id, acquired_at, expires_at)
SELECT :scope, :resource, :owner, ({epoch} << 41) + (date_part('epoch', t.at) * 1000)::bigint - 1735689600000, :write_id,
       :ttl_seconds, :metadata, :write_id, t.at, t.at + make_interval(secs => :ttl_seconds)
  FROM t
 WHERE NOT EXISTS (SELECT FROM {schema}.leases b WHERE b.scope = :scope AND b.resource = :resource AND b.owner IS NOT NULL)
ON CONFLICT (scope, resource) DO UPDATE
   SET owner = excluded.owner, token = greatest(l.token + 1, excluded.token), ttl_seconds = excluded.ttl_seconds,
       metadata = excluded.metadata, write_id = excluded.write_id, acquired_at = excluded.acquired_at,
         expires_at = excluded.expires_at
 WHERE l.owner IS NULL
RETURNING l.token, l.ttl_seconds, l.acquired_at, l.expires_at, l.metadata;

-- name: take_over_lease
-- Grants a lease whose holder let it expire, once that holder's open writes have ended. Returns: one row or none.
-- Lost: read_back_lease, sent again.
WITH dead AS MATERIALIZED (SELECT scope, resource, token FROM {schema}.leases
        WHERE scope = :scope AND resource = :resource AND owner IS NOT NULL AND expires_at <= (SELECT {clock}) FOR UPDATE),
     t AS MATERIALIZED (SELECT dead.token, {clock} AS at, {clock} + make_interval(secs => :ttl_seconds) AS until,
        ({epoch} << 41) + (date_part('epoch', {clock}) * 1000)::bigint - 1735689600000 AS first_token FROM dead)
UPDATE {schema}.leases l
   SET owner = :owner, turn = :write_id, token = greatest(l.token + 1, t.first_token), ttl_seconds = :ttl_seconds,
       metadata = :metadata, write_id = :write_id, acquired_at = t.at, expires_at = t.until
  FROM t WHERE l.scope = :scope AND l.resource = :resource AND l.token = t.token
RETURNING l.token, l.ttl_seconds, l.acquired_at, l.expires_at, l.metadata;

-- name: read_back_lease
-- A lease as a call left it, if nobody has granted or freed it since. Returns: one row or none.
SELECT l.token, l.ttl_seconds, l.acquired_at, l.expires_at, l.metadata
  FROM {schema}.leases l WHERE l.scope = :scope AND l.resource = :resource AND l.write_id = :write_id;

-- name: inspect_lease
-- Who holds a lease, and for how many seconds yet (none or fewer: it expired). Returns: one row or none.
SELECT l.owner, l.token, l.acquired_at, l.expires_at, extract(epoch FROM l.expires_at - {clock})::double precision, l.metadata
  FROM {schema}.leases l WHERE l.scope = :scope AND l.resource = :resource AND l.owner IS NOT NULL;

-- name: list_leases
-- The next so many leases of a scope in the order of their resources, and one more, as inspect_lease tells of each; a free
-- one has no owner. That is a column and no condition: a condition would let a page read on. Returns: many rows.
WITH t AS MATERIALIZED (SELECT {clock} AS at)
SELECT l.resource, l.owner, l.token, l.acquired_at, l.expires_at,
       extract(epoch FROM l.expires_at - (SELECT at FROM t))::double precision, l.metadata
  FROM {schema}.leases l
 WHERE l.scope = :scope AND l.resource > :after
 ORDER BY l.resource LIMIT :page_size + 1;

-- name: renew_lease
-- Moves the deadline of a valid lease, never back, by a given TTL or its own. Returns: one row or none.
-- Lost: sent again.
UPDATE {schema}.leases l
   SET expires_at = greatest(l.expires_at, {clock} + make_interval(secs => coalesce(:ttl_seconds, l.ttl_seconds)))
 WHERE l.scope = :scope AND l.resource = :resource AND l.owner = :owner AND l.token = :token AND l.expires_at > {clock}
RETURNING l.token, l.ttl_seconds, l.acquired_at, l.expires_at, l.metadata;

-- name: renew_leases
-- renew_lease for many leases. Those that are valid are locked first, in the order of their resources, so that no two calls
-- wait for one another, and then written as they were found: see update_states. As a renewal does, they pass by open fenced
-- writes. Returns: many rows.
-- Lost: sent again.
WITH given AS MATERIALIZED (SELECT g.* FROM unnest(:each_resource, :each_owner, :each_token) AS g (resource, owner, token)
        ORDER BY g.resource),
     due AS MATERIALIZED (SELECT l.* FROM given g, LATERAL (SELECT l.* FROM {schema}.leases l
        WHERE l.scope = :scope AND l.resource = g.resource AND l.owner = g.owner AND l.token = g.token
          AND l.expires_at > (SELECT {clock}) FOR NO KEY UPDATE) l)
INSERT INTO {schema}.leases AS l (scope, resource, token, turn, ttl_seconds, write_id, acquired_at, expires_at)
SELECT :scope, due.resource, due.token, due.turn, due.ttl_seconds, due.write_id, due.acquired_at,
       greatest(due.expires_at, (SELECT {clock}) + make_interval(secs => coalesce(:ttl_seconds, due.ttl_seconds)))
  FROM due
ON CONFLICT (scope, resource) DO UPDATE SET expires_at = excluded.expires_at
RETURNING l.resource, l.token, l.ttl_seconds, l.acquired_at, l.expires_at, l.metadata;

-- name: release_lease
-- Frees a lease that is still this grant's, expired or not, once its open writes have ended. Returns: one row or none.
-- Lost: read_back_lease, sent again.
UPDATE {schema}.leases l SET owner = NULL, turn = :write_id, metadata = NULL, write_id = :write_id, expires_at = {clock}
 WHERE l.scope = :scope AND l.resource = :resource AND l.owner = :owner AND l.token = :token
RETURNING l.token;

-- name: expire_lease
-- The first half of a revocation: new fenced writes fail from now on, so that they cannot starve its other half.
-- Returns: one row or none.
UPDATE {schema}.leases l SET expires_at = {clock}
 WHERE l.scope = :scope AND l.resource = :resource AND l.owner IS NOT NULL AND l.expires_at > {clock}
RETURNING l.token;

-- name: revoke_lease
-- The other half: frees that grant, or with no token whichever there is. Its expiry is not looked at: a renewal that
-- waited behind the first half may have moved it. Returns: one row or none.
-- Lost: read_back_lease.
WITH theirs AS MATERIALIZED (SELECT scope, token FROM {schema}.leases
        WHERE scope = :scope AND resource = :resource AND owner IS NOT NULL AND (:token IS NULL OR token = :token) FOR UPDATE),
     t AS MATERIALIZED (SELECT theirs.token, {clock} AS at FROM theirs)
UPDATE {schema}.leases l SET owner = NULL, turn = :write_id, metadata = NULL, write_id = :write_id, expires_at = t.at
  FROM t WHERE l.scope = :scope AND l.resource = :resource AND l.token = t.token
RETURNING l.token;

-- name: check_fence
-- Whether a grant is still valid, for the words of a refusal alone: it proves nothing. Returns: one row or none.
SELECT l.token FROM {schema}.leases l
 WHERE l.scope = :scope AND l.resource = :fence_resource AND l.owner = :fence_owner AND l.token = :fence_token
   AND l.expires_at > {clock};

-- name: sweep_leases
-- Reads a page of leases of one scope, and removes those that expired or came free that long ago. Says how many, the last
-- resource of the page, and its size. No index has the expiry, which renewals change. Returns: one row.
WITH page AS MATERIALIZED (SELECT scope, resource, expires_at FROM {schema}.leases
        WHERE scope = :scope AND resource > :after ORDER BY resource LIMIT :page_size),
     due AS MATERIALIZED (SELECT {clock} - make_interval(secs => :age_seconds) AS until),
     gone AS MATERIALIZED (SELECT l.scope, l.resource FROM due, page JOIN {schema}.leases l USING (scope, resource)
        WHERE page.expires_at <= due.until AND l.expires_at <= due.until ORDER BY l.resource FOR UPDATE OF l SKIP LOCKED),
     removed AS (DELETE FROM {schema}.leases l USING gone
        WHERE l.scope = gone.scope AND l.resource = gone.resource RETURNING 1)
SELECT (SELECT count(*) FROM removed), (SELECT max(resource) FROM page), (SELECT count(*) FROM page);
