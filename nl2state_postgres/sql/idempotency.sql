-- A row can be reserved anew when it expired, or when its attempt ran out uncompleted and the request is the same.
-- Attempts are numbered as tokens are (see leases.sql), and a row is emptied and never deleted by a call: a deleted one
-- would let reserve, forget, reserve within one millisecond give one attempt twice.
-- What ends an attempt raises its number too: by its expiry alone, a clock that steps back would bring it to life again.

-- name: reserve_key
-- Reserves a key, or says how it stands: one that cannot be reserved anew is seen, and neither locked nor written. No row:
-- somebody reserved it after this statement's snapshot and before its insertion. Returns: one row or none.
-- Lost: sent again.
WITH t AS MATERIALIZED (SELECT {clock} AS at),
     seen AS MATERIALIZED (SELECT k.attempt, k.completed_at IS NULL AND k.write_id = :write_id AS mine,
               k.fingerprint = :fingerprint AS same, k.completed_at, k.claim_until, k.outcome, k.outcome_encoding,
               k.outcome_format, k.outcome_fingerprint, {clock} AS at
          FROM {schema}.keys k
         WHERE k.scope = :scope AND k.key = :key AND k.expires_at > {clock}
           AND (k.completed_at IS NOT NULL OR k.claim_until > {clock} OR k.fingerprint <> :fingerprint)),
     new AS (INSERT INTO {schema}.keys AS k (scope, key, fingerprint, record_id, attempt, write_id, attempt_ttl_seconds,
               result_ttl_seconds, reserved_at, claim_until, expires_at)
        SELECT :scope, :key, :fingerprint, :record_id,
               ({epoch} << 41) + (date_part('epoch', t.at) * 1000)::bigint - 1735689600000, :write_id, :attempt_ttl_seconds,
               :result_ttl_seconds, t.at, t.at + make_interval(secs => :attempt_ttl_seconds),
               t.at + make_interval(secs => greatest(:attempt_ttl_seconds, :result_ttl_seconds))
          FROM t WHERE NOT EXISTS (SELECT FROM seen)
        ON CONFLICT (scope, key) DO UPDATE
           SET attempt = greatest(k.attempt + 1, excluded.attempt), fingerprint = excluded.fingerprint,
               record_id = excluded.record_id, write_id = excluded.write_id,
               attempt_ttl_seconds = excluded.attempt_ttl_seconds, result_ttl_seconds = excluded.result_ttl_seconds,
               reserved_at = excluded.reserved_at, claim_until = excluded.claim_until, expires_at = excluded.expires_at,
               completed_at = NULL, outcome = NULL, outcome_encoding = NULL, outcome_format = NULL, outcome_fingerprint = NULL
         WHERE k.expires_at <= excluded.reserved_at
            OR (k.completed_at IS NULL AND k.claim_until <= excluded.reserved_at AND k.fingerprint = excluded.fingerprint)
        RETURNING k.attempt, true, true, k.completed_at, k.claim_until, k.outcome, k.outcome_encoding, k.outcome_format,
                  k.outcome_fingerprint, k.reserved_at)
SELECT * FROM seen UNION ALL SELECT * FROM new;

-- name: reserve_keys
-- reserve_key for many keys, in their order. Of a key that somebody reserved meanwhile there is no row. Returns: many rows.
-- Lost: sent again.
WITH t AS MATERIALIZED (SELECT {clock} AS at),
     given AS MATERIALIZED (SELECT g.* FROM unnest(
          :each_key, :each_fingerprint, :each_record_id) AS g (key, fingerprint, record_id)),
     seen AS MATERIALIZED (SELECT k.* FROM given g, LATERAL (SELECT k.key, k.attempt,
               k.completed_at IS NULL AND k.write_id = :write_id AS mine, k.fingerprint = g.fingerprint AS same, k.completed_at,
               k.claim_until, k.outcome, k.outcome_encoding, k.outcome_format, k.outcome_fingerprint, (SELECT {clock}) AS at
          FROM {schema}.keys k
         WHERE k.scope = :scope AND k.key = g.key AND k.expires_at > (SELECT {clock})
           AND (k.completed_at IS NOT NULL OR k.claim_until > (SELECT {clock}) OR k.fingerprint <> g.fingerprint) LIMIT 1) k),
     new AS (INSERT INTO {schema}.keys AS k (scope, key, fingerprint, record_id, attempt, write_id, attempt_ttl_seconds,
               result_ttl_seconds, reserved_at, claim_until, expires_at)
        SELECT :scope, g.key, g.fingerprint, g.record_id,
               ({epoch} << 41) + (date_part('epoch', t.at) * 1000)::bigint - 1735689600000, :write_id, :attempt_ttl_seconds,
               :result_ttl_seconds, t.at, t.at + make_interval(secs => :attempt_ttl_seconds),
               t.at + make_interval(secs => greatest(:attempt_ttl_seconds, :result_ttl_seconds))
          FROM t, given g WHERE NOT EXISTS (SELECT FROM seen WHERE seen.key = g.key)
         ORDER BY g.key
        ON CONFLICT (scope, key) DO UPDATE
           SET attempt = greatest(k.attempt + 1, excluded.attempt), fingerprint = excluded.fingerprint,
               record_id = excluded.record_id, write_id = excluded.write_id,
               attempt_ttl_seconds = excluded.attempt_ttl_seconds, result_ttl_seconds = excluded.result_ttl_seconds,
               reserved_at = excluded.reserved_at, claim_until = excluded.claim_until, expires_at = excluded.expires_at,
               completed_at = NULL, outcome = NULL, outcome_encoding = NULL, outcome_format = NULL, outcome_fingerprint = NULL
         WHERE k.expires_at <= excluded.reserved_at
            OR (k.completed_at IS NULL AND k.claim_until <= excluded.reserved_at AND k.fingerprint = excluded.fingerprint)
        RETURNING k.key, k.attempt, true, true, k.completed_at, k.claim_until, k.outcome, k.outcome_encoding, k.outcome_format,
                  k.outcome_fingerprint, k.reserved_at)
SELECT * FROM seen UNION ALL SELECT * FROM new;

-- name: renew_key
-- Moves the end of an attempt that has not run out, never back, by a given TTL or its own; the key does not expire before it.
-- The ticket of its reservation (write_id) stays. Returns: one row or none.
-- Lost: sent again.
UPDATE {schema}.keys k
   SET claim_until = greatest(k.claim_until, {clock} + make_interval(secs => coalesce(:ttl_seconds, k.attempt_ttl_seconds))),
       expires_at = greatest(k.expires_at, {clock} + make_interval(secs => coalesce(:ttl_seconds, k.attempt_ttl_seconds)))
 WHERE k.scope = :scope AND k.key = :key AND k.attempt = :attempt AND k.completed_at IS NULL AND k.claim_until > {clock}
RETURNING k.claim_until;

-- name: complete_key
-- Keeps the outcome of an attempt that was not superseded, or its fingerprint, for its TTL from now. Returns: one row or none.
-- Lost: read_back_key, sent again.
UPDATE {schema}.keys k
   SET completed_at = {clock}, outcome = :outcome, outcome_encoding = :outcome_encoding, outcome_format = :outcome_format,
       outcome_fingerprint = :outcome_fingerprint, write_id = :write_id,
       expires_at = {clock} + make_interval(secs => k.result_ttl_seconds)
 WHERE k.scope = :scope AND k.key = :key AND k.attempt = :attempt AND k.completed_at IS NULL AND k.expires_at > {clock}
RETURNING k.attempt;

-- name: complete_key_fenced
-- complete_key while the lease is held. Returns: one row or none.
-- Lost: read_back_key, sent again.
WITH held AS MATERIALIZED (SELECT scope FROM {schema}.leases
        WHERE scope = :scope AND resource = :fence_resource AND owner = :fence_owner AND token = :fence_token
          AND expires_at > (SELECT {clock}) FOR KEY SHARE)
UPDATE {schema}.keys k
   SET completed_at = {clock}, outcome = :outcome, outcome_encoding = :outcome_encoding, outcome_format = :outcome_format,
       outcome_fingerprint = :outcome_fingerprint, write_id = :write_id,
       expires_at = {clock} + make_interval(secs => k.result_ttl_seconds)
  FROM held
 WHERE k.scope = :scope AND k.key = :key AND k.attempt = :attempt AND k.completed_at IS NULL AND k.expires_at > {clock}
RETURNING k.attempt;

-- name: complete_keys
-- complete_key for many keys. Those whose attempts were not superseded are locked first, in the order of their keys, so that
-- no two calls wait for one another, and then written as they were found: see update_states. Returns: many rows.
-- Lost: read_back_keys.
WITH given AS MATERIALIZED (SELECT g.* FROM unnest(
          :each_key, :each_attempt, :each_outcome, :each_outcome_encoding, :each_outcome_format,
          :each_outcome_fingerprint) AS g (key, attempt, outcome, outcome_encoding, outcome_format, outcome_fingerprint)
        ORDER BY g.key),
     due AS MATERIALIZED (SELECT k.*, g.* FROM given g, LATERAL (SELECT k.fingerprint, k.attempt_ttl_seconds,
               k.result_ttl_seconds, k.reserved_at, k.claim_until
          FROM {schema}.keys k
        WHERE k.scope = :scope AND k.key = g.key AND k.attempt = g.attempt AND k.completed_at IS NULL
          AND k.expires_at > (SELECT {clock}) FOR NO KEY UPDATE) k)
INSERT INTO {schema}.keys AS k (scope, key, fingerprint, attempt, write_id, attempt_ttl_seconds, result_ttl_seconds,
       reserved_at, claim_until, completed_at, outcome, outcome_encoding, outcome_format, outcome_fingerprint, expires_at)
SELECT :scope, g.key, g.fingerprint, g.attempt, :write_id, g.attempt_ttl_seconds, g.result_ttl_seconds, g.reserved_at,
       g.claim_until, (SELECT {clock}), g.outcome, g.outcome_encoding, g.outcome_format, g.outcome_fingerprint,
       (SELECT {clock}) + make_interval(secs => g.result_ttl_seconds)
  FROM due g
ON CONFLICT (scope, key) DO UPDATE
   SET completed_at = excluded.completed_at, outcome = excluded.outcome, outcome_encoding = excluded.outcome_encoding,
       outcome_format = excluded.outcome_format, outcome_fingerprint = excluded.outcome_fingerprint,
       write_id = excluded.write_id, expires_at = excluded.expires_at
RETURNING k.key;

-- name: complete_keys_fenced
-- complete_keys while the lease is held. Returns: many rows.
-- Lost: read_back_keys.
WITH held AS MATERIALIZED (SELECT scope FROM {schema}.leases
        WHERE scope = :scope AND resource = :fence_resource AND owner = :fence_owner AND token = :fence_token
          AND expires_at > (SELECT {clock}) FOR KEY SHARE),
     given AS MATERIALIZED (SELECT g.* FROM held, unnest(
          :each_key, :each_attempt, :each_outcome, :each_outcome_encoding, :each_outcome_format,
          :each_outcome_fingerprint) AS g (key, attempt, outcome, outcome_encoding, outcome_format, outcome_fingerprint)
        ORDER BY g.key),
     due AS MATERIALIZED (SELECT k.*, g.* FROM given g, LATERAL (SELECT k.fingerprint, k.attempt_ttl_seconds,
               k.result_ttl_seconds, k.reserved_at, k.claim_until
          FROM {schema}.keys k
        WHERE k.scope = :scope AND k.key = g.key AND k.attempt = g.attempt AND k.completed_at IS NULL
          AND k.expires_at > (SELECT {clock}) FOR NO KEY UPDATE) k)
INSERT INTO {schema}.keys AS k (scope, key, fingerprint, attempt, write_id, attempt_ttl_seconds, result_ttl_seconds,
       reserved_at, claim_until, completed_at, outcome, outcome_encoding, outcome_format, outcome_fingerprint, expires_at)
SELECT :scope, g.key, g.fingerprint, g.attempt, :write_id, g.attempt_ttl_seconds, g.result_ttl_seconds, g.reserved_at,
       g.claim_until, (SELECT {clock}), g.outcome, g.outcome_encoding, g.outcome_format, g.outcome_fingerprint,
       (SELECT {clock}) + make_interval(secs => g.result_ttl_seconds)
  FROM due g
ON CONFLICT (scope, key) DO UPDATE
   SET completed_at = excluded.completed_at, outcome = excluded.outcome, outcome_encoding = excluded.outcome_encoding,
       outcome_format = excluded.outcome_format, outcome_fingerprint = excluded.outcome_fingerprint,
       write_id = excluded.write_id, expires_at = excluded.expires_at
RETURNING k.key;

-- name: abandon_key
-- Ends an attempt without an outcome: the key is free. Returns: one row or none.
-- Lost: read_back_key, sent again.
UPDATE {schema}.keys k SET attempt = k.attempt + 1, write_id = :write_id, claim_until = {clock}, expires_at = {clock}
 WHERE k.scope = :scope AND k.key = :key AND k.attempt = :attempt AND k.completed_at IS NULL AND k.expires_at > {clock}
RETURNING k.attempt;

-- name: abandon_key_fenced
-- abandon_key while the lease is held. Returns: one row or none.
-- Lost: read_back_key, sent again.
WITH held AS MATERIALIZED (SELECT scope FROM {schema}.leases
        WHERE scope = :scope AND resource = :fence_resource AND owner = :fence_owner AND token = :fence_token
          AND expires_at > (SELECT {clock}) FOR KEY SHARE)
UPDATE {schema}.keys k SET attempt = k.attempt + 1, write_id = :write_id, claim_until = {clock}, expires_at = {clock}
  FROM held
 WHERE k.scope = :scope AND k.key = :key AND k.attempt = :attempt AND k.completed_at IS NULL AND k.expires_at > {clock}
RETURNING k.attempt;

-- name: forget_key
-- Empties and expires a key that is not expired yet. Returns: one row or none.
-- Lost: read_back_key.
UPDATE {schema}.keys k
   SET completed_at = NULL, outcome = NULL, outcome_encoding = NULL, outcome_format = NULL, outcome_fingerprint = NULL,
       attempt = k.attempt + 1, write_id = :write_id, claim_until = {clock}, expires_at = {clock}
 WHERE k.scope = :scope AND k.key = :key AND k.expires_at > {clock}
RETURNING k.attempt;

-- name: forget_key_fenced
-- forget_key while the lease is held. Returns: one row or none.
-- Lost: read_back_key.
WITH held AS MATERIALIZED (SELECT scope FROM {schema}.leases
        WHERE scope = :scope AND resource = :fence_resource AND owner = :fence_owner AND token = :fence_token
          AND expires_at > (SELECT {clock}) FOR KEY SHARE)
UPDATE {schema}.keys k
   SET completed_at = NULL, outcome = NULL, outcome_encoding = NULL, outcome_format = NULL, outcome_fingerprint = NULL,
       attempt = k.attempt + 1, write_id = :write_id, claim_until = {clock}, expires_at = {clock}
  FROM held WHERE k.scope = :scope AND k.key = :key AND k.expires_at > {clock}
RETURNING k.attempt;

-- name: read_back_key
-- The attempt of a key, if nobody has written it since. Returns: one row or none.
SELECT k.attempt FROM {schema}.keys k WHERE k.scope = :scope AND k.key = :key AND k.write_id = :write_id;

-- name: read_back_keys
-- read_back_key for many keys. Returns: many rows.
SELECT g.key FROM unnest(:each_key) AS g (key),
       LATERAL (SELECT FROM {schema}.keys k WHERE k.scope = :scope AND k.key = g.key AND k.write_id = :write_id LIMIT 1) k;

-- name: get_key
-- A key that is not expired. Returns: one row or none.
SELECT k.attempt, k.record_id, k.reserved_at, k.claim_until, k.completed_at, k.expires_at, k.outcome, k.outcome_encoding,
       k.outcome_format, k.outcome_fingerprint
  FROM {schema}.keys k WHERE k.scope = :scope AND k.key = :key AND k.expires_at > {clock};

-- name: list_keys
-- The next so many keys of a scope in their order, and one more; and whether each is not expired, and bound to that record.
-- Whether it matches is a column and no condition: a condition would let a page read on. Returns: many rows.
WITH t AS MATERIALIZED (SELECT {clock} AS at)
SELECT l.key, l.listed, l.attempt, l.record_id, l.reserved_at, l.claim_until, l.completed_at, l.expires_at,
       CASE WHEN l.listed THEN l.outcome END, l.outcome_encoding, l.outcome_format, l.outcome_fingerprint
  FROM (SELECT k.*, k.expires_at > (SELECT at FROM t) AND (:record_id IS NULL OR coalesce(k.record_id = :record_id, false))
               AS listed
          FROM {schema}.keys k
         WHERE k.scope = :scope AND k.key > :after
         ORDER BY k.key LIMIT :page_size + 1) l
 ORDER BY l.key;

-- name: sweep_keys
-- Reads a page of keys of one scope, and removes those that expired that long ago. Says how many, the last key of the page,
-- and its size. Returns: one row.
WITH page AS MATERIALIZED (SELECT scope, key, expires_at FROM {schema}.keys
        WHERE scope = :scope AND key > :after ORDER BY key LIMIT :page_size),
     due AS MATERIALIZED (SELECT {clock} - make_interval(secs => :age_seconds) AS until),
     gone AS MATERIALIZED (SELECT k.scope, k.key FROM due, page JOIN {schema}.keys k USING (scope, key)
        WHERE page.expires_at <= due.until AND k.expires_at <= due.until ORDER BY k.key FOR UPDATE OF k SKIP LOCKED),
     removed AS (DELETE FROM {schema}.keys k USING gone
        WHERE k.scope = gone.scope AND k.key = gone.key RETURNING 1)
SELECT (SELECT count(*) FROM removed), (SELECT max(key) FROM page), (SELECT count(*) FROM page);
