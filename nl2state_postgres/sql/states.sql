-- Each write exists twice: as it is, and guarded by a fence, which adds `held` (see leases.sql) and nothing else.
-- At an expected revision a write takes effect once, however often it is sent: with any revision (NULL) it is not sent again.
-- An update reads the clock where it stands, which costs less than to read it once: its times are microseconds apart.
-- The sweeps find what they locked by its whole key, and not by a scope that is given: then a plan that was made on an empty
-- table would read that scope to its end. Each goes on at the time where the one before it stopped: what that one removed
-- stays in the index until a vacuum, and while anybody's old snapshot lasts each entry costs a look at its dead row. Not
-- after that time: several rows may share it.

-- name: get_state
-- The live record. Returns: one row or none.
SELECT s.revision, s.status, s.is_terminal, s.schema_version, s.request_id, s.parent_id, s.created_at, s.updated_at,
       s.expires_at, s.payload, s.payload_encoding, s.payload_format
  FROM {schema}.states s
 WHERE s.scope = :scope AND s.record_id = :record_id
   AND s.deleted_at IS NULL AND (s.expires_at IS NULL OR s.expires_at > {clock});

-- name: get_states
-- The live ones of these records, each with its place in the list. Each is looked up by its key, whatever the planner knows of
-- the table. Returns: many rows.
SELECT g.place, s.revision, s.status, s.is_terminal, s.schema_version, s.request_id, s.parent_id, s.created_at, s.updated_at,
       s.expires_at, s.payload, s.payload_encoding, s.payload_format
  FROM unnest(:each_record_id) WITH ORDINALITY AS g (record_id, place),
       LATERAL (SELECT * FROM {schema}.states l
         WHERE l.scope = :scope AND l.record_id = g.record_id
           AND l.deleted_at IS NULL AND (l.expires_at IS NULL OR l.expires_at > (SELECT {clock})) LIMIT 1) s;

-- name: get_revision
-- The live record's revision. Returns: one row or none.
SELECT s.revision
  FROM {schema}.states s
 WHERE s.scope = :scope AND s.record_id = :record_id
   AND s.deleted_at IS NULL AND (s.expires_at IS NULL OR s.expires_at > {clock});

-- name: get_checkpoint
-- The live record, if its last write had this request_id. Returns: one row or none.
SELECT s.revision, s.status, s.is_terminal, s.schema_version, s.request_id, s.parent_id, s.created_at, s.updated_at,
       s.expires_at, s.payload, s.payload_encoding, s.payload_format
  FROM {schema}.states s
 WHERE s.scope = :scope AND s.record_id = :record_id AND s.request_id = :request_id
   AND s.deleted_at IS NULL AND (s.expires_at IS NULL OR s.expires_at > {clock});

-- name: list_states
-- The next so many rows of a scope in the order of their ids, and one more; and whether each is a live record in that status.
-- Whether it matches is a column and no condition: a condition would let a page read on. Returns: many rows.
WITH t AS MATERIALIZED (SELECT {clock} AS at)
SELECT l.record_id, l.listed, l.revision, l.status, l.is_terminal, l.schema_version, l.request_id, l.parent_id, l.created_at,
       l.updated_at, l.expires_at, CASE WHEN l.listed THEN l.payload END, l.payload_encoding, l.payload_format
  FROM (SELECT s.*, s.deleted_at IS NULL AND (s.expires_at IS NULL OR s.expires_at > (SELECT at FROM t))
               AND (:status IS NULL OR s.status = :status) AS listed
          FROM {schema}.states s
         WHERE s.scope = :scope AND s.record_id > :after AND s.record_id >= :first AND s.record_id < :before
         ORDER BY s.record_id LIMIT :page_size + 1) l
 ORDER BY l.record_id;

-- name: list_state_ids
-- list_states without the values. Returns: many rows.
WITH t AS MATERIALIZED (SELECT {clock} AS at)
SELECT s.record_id, s.deleted_at IS NULL AND (s.expires_at IS NULL OR s.expires_at > (SELECT at FROM t))
       AND (:status IS NULL OR s.status = :status) AS listed
  FROM {schema}.states s
 WHERE s.scope = :scope AND s.record_id > :after AND s.record_id >= :first AND s.record_id < :before
 ORDER BY s.record_id LIMIT :page_size + 1;

-- name: create_state
-- Makes a record, or revives an emptied or expired row. A live one is seen, and not locked. Returns: one row or none.
-- Lost: read_back_state.
WITH t AS MATERIALIZED (SELECT {clock} AS at)
INSERT INTO {schema}.states AS s (scope, record_id, revision, status, is_terminal, schema_version, payload, payload_encoding,
       payload_format, request_id, parent_id, write_id, created_at, updated_at, expires_at, ended_at)
SELECT :scope, :record_id, 1, :status, :is_terminal, :schema_version, :payload, :payload_encoding,
       :payload_format, :request_id, :parent_id, :write_id, t.at, t.at, t.at + make_interval(secs => :ttl_seconds),
       CASE WHEN :is_terminal THEN t.at END
  FROM t
 WHERE NOT EXISTS (SELECT FROM {schema}.states l WHERE l.scope = :scope AND l.record_id = :record_id
          AND l.deleted_at IS NULL AND (l.expires_at IS NULL OR l.expires_at > {clock}))
ON CONFLICT (scope, record_id) DO UPDATE
   SET revision = s.revision + 1, status = excluded.status, is_terminal = excluded.is_terminal,
       schema_version = excluded.schema_version, payload = excluded.payload, payload_encoding = excluded.payload_encoding,
       payload_format = excluded.payload_format, request_id = excluded.request_id, parent_id = excluded.parent_id,
       write_id = excluded.write_id, created_at = excluded.created_at, updated_at = excluded.updated_at,
       expires_at = excluded.expires_at, ended_at = excluded.ended_at, deleted_at = NULL
 WHERE s.deleted_at IS NOT NULL OR s.expires_at <= excluded.updated_at
RETURNING s.revision, s.status, s.is_terminal, s.schema_version, s.request_id, s.parent_id, s.created_at, s.updated_at,
          s.expires_at;

-- name: create_state_fenced
-- create_state while the lease is held. Returns: one row or none.
-- Lost: read_back_state.
WITH held AS MATERIALIZED (SELECT scope FROM {schema}.leases
        WHERE scope = :scope AND resource = :fence_resource AND owner = :fence_owner AND token = :fence_token
          AND expires_at > (SELECT {clock}) FOR KEY SHARE),
     t AS MATERIALIZED (SELECT {clock} AS at)
INSERT INTO {schema}.states AS s (scope, record_id, revision, status, is_terminal, schema_version, payload, payload_encoding,
       payload_format, request_id, parent_id, write_id, created_at, updated_at, expires_at, ended_at)
SELECT :scope, :record_id, 1, :status, :is_terminal, :schema_version, :payload, :payload_encoding,
       :payload_format, :request_id, :parent_id, :write_id, t.at, t.at, t.at + make_interval(secs => :ttl_seconds),
       CASE WHEN :is_terminal THEN t.at END
  FROM held, t
 WHERE NOT EXISTS (SELECT FROM {schema}.states l WHERE l.scope = :scope AND l.record_id = :record_id
          AND l.deleted_at IS NULL AND (l.expires_at IS NULL OR l.expires_at > {clock}))
ON CONFLICT (scope, record_id) DO UPDATE
   SET revision = s.revision + 1, status = excluded.status, is_terminal = excluded.is_terminal,
       schema_version = excluded.schema_version, payload = excluded.payload, payload_encoding = excluded.payload_encoding,
       payload_format = excluded.payload_format, request_id = excluded.request_id, parent_id = excluded.parent_id,
       write_id = excluded.write_id, created_at = excluded.created_at, updated_at = excluded.updated_at,
       expires_at = excluded.expires_at, ended_at = excluded.ended_at, deleted_at = NULL
 WHERE s.deleted_at IS NOT NULL OR s.expires_at <= excluded.updated_at
RETURNING s.revision, s.status, s.is_terminal, s.schema_version, s.request_id, s.parent_id, s.created_at, s.updated_at,
          s.expires_at;

-- name: create_states
-- create_state for many records, in the order of their ids. Returns: many rows.
-- Lost: read_back_states.
WITH given AS MATERIALIZED (SELECT g.* FROM unnest(
          :each_record_id, :each_status, :each_is_terminal, :each_ttl_seconds, :each_schema_version, :each_payload,
          :each_payload_encoding, :each_request_id,
          :each_parent_id)
          AS g (record_id, status, is_terminal, ttl_seconds, schema_version, payload, payload_encoding, request_id, parent_id)),
     t AS MATERIALIZED (SELECT {clock} AS at)
INSERT INTO {schema}.states AS s (scope, record_id, revision, status, is_terminal, schema_version, payload, payload_encoding,
       payload_format, request_id, parent_id, write_id, created_at, updated_at, expires_at, ended_at)
SELECT :scope, g.record_id, 1, g.status, g.is_terminal, g.schema_version, g.payload, g.payload_encoding,
       :payload_format, g.request_id, g.parent_id, :write_id, t.at, t.at, t.at + make_interval(secs => g.ttl_seconds),
       CASE WHEN g.is_terminal THEN t.at END
  FROM t, given g
 WHERE (SELECT true FROM {schema}.states l WHERE l.scope = :scope AND l.record_id = g.record_id
          AND l.deleted_at IS NULL AND (l.expires_at IS NULL OR l.expires_at > {clock})) IS NULL
 ORDER BY g.record_id
ON CONFLICT (scope, record_id) DO UPDATE
   SET revision = s.revision + 1, status = excluded.status, is_terminal = excluded.is_terminal,
       schema_version = excluded.schema_version, payload = excluded.payload, payload_encoding = excluded.payload_encoding,
       payload_format = excluded.payload_format, request_id = excluded.request_id, parent_id = excluded.parent_id,
       write_id = excluded.write_id, created_at = excluded.created_at, updated_at = excluded.updated_at,
       expires_at = excluded.expires_at, ended_at = excluded.ended_at, deleted_at = NULL
 WHERE s.deleted_at IS NOT NULL OR s.expires_at <= excluded.updated_at
RETURNING s.record_id, s.revision, s.status, s.is_terminal, s.schema_version, s.request_id, s.parent_id, s.created_at,
          s.updated_at, s.expires_at;

-- name: create_states_fenced
-- create_states while the lease is held. Returns: many rows.
-- Lost: read_back_states.
WITH held AS MATERIALIZED (SELECT scope FROM {schema}.leases
        WHERE scope = :scope AND resource = :fence_resource AND owner = :fence_owner AND token = :fence_token
          AND expires_at > (SELECT {clock}) FOR KEY SHARE),
     given AS MATERIALIZED (SELECT g.* FROM held, unnest(
          :each_record_id, :each_status, :each_is_terminal, :each_ttl_seconds, :each_schema_version, :each_payload,
          :each_payload_encoding, :each_request_id,
          :each_parent_id)
          AS g (record_id, status, is_terminal, ttl_seconds, schema_version, payload, payload_encoding, request_id, parent_id)),
     t AS MATERIALIZED (SELECT {clock} AS at)
INSERT INTO {schema}.states AS s (scope, record_id, revision, status, is_terminal, schema_version, payload, payload_encoding,
       payload_format, request_id, parent_id, write_id, created_at, updated_at, expires_at, ended_at)
SELECT :scope, g.record_id, 1, g.status, g.is_terminal, g.schema_version, g.payload, g.payload_encoding,
       :payload_format, g.request_id, g.parent_id, :write_id, t.at, t.at, t.at + make_interval(secs => g.ttl_seconds),
       CASE WHEN g.is_terminal THEN t.at END
  FROM t, given g
 WHERE (SELECT true FROM {schema}.states l WHERE l.scope = :scope AND l.record_id = g.record_id
          AND l.deleted_at IS NULL AND (l.expires_at IS NULL OR l.expires_at > {clock})) IS NULL
 ORDER BY g.record_id
ON CONFLICT (scope, record_id) DO UPDATE
   SET revision = s.revision + 1, status = excluded.status, is_terminal = excluded.is_terminal,
       schema_version = excluded.schema_version, payload = excluded.payload, payload_encoding = excluded.payload_encoding,
       payload_format = excluded.payload_format, request_id = excluded.request_id, parent_id = excluded.parent_id,
       write_id = excluded.write_id, created_at = excluded.created_at, updated_at = excluded.updated_at,
       expires_at = excluded.expires_at, ended_at = excluded.ended_at, deleted_at = NULL
 WHERE s.deleted_at IS NOT NULL OR s.expires_at <= excluded.updated_at
RETURNING s.record_id, s.revision, s.status, s.is_terminal, s.schema_version, s.request_id, s.parent_id, s.created_at,
          s.updated_at, s.expires_at;

-- name: update_state
-- Writes a live record at its expected revision, unless it is terminal. Returns: one row or none.
-- Lost: read_back_state, sent again.
UPDATE {schema}.states s
   SET revision = s.revision + 1, status = coalesce(:status, s.status), is_terminal = :is_terminal,
       schema_version = coalesce(:schema_version, s.schema_version), payload = :payload,
       payload_encoding = :payload_encoding, payload_format = :payload_format, request_id = :request_id,
       write_id = :write_id, updated_at = {clock}, ended_at = CASE WHEN :is_terminal THEN {clock} END,
       expires_at = CASE WHEN NOT :lift_expiry THEN coalesce({clock} + make_interval(secs => :ttl_seconds), s.expires_at) END
 WHERE s.scope = :scope AND s.record_id = :record_id
   AND (:expected_revision IS NULL OR s.revision = :expected_revision)
   AND (:expected_status IS NULL OR s.status = :expected_status)
   AND (:source_statuses IS NULL OR s.status = ANY (:source_statuses))
   AND NOT s.is_terminal AND s.deleted_at IS NULL AND (s.expires_at IS NULL OR s.expires_at > {clock})
RETURNING s.revision, s.status, s.is_terminal, s.schema_version, s.request_id, s.parent_id, s.created_at, s.updated_at,
          s.expires_at;

-- name: update_state_fenced
-- update_state while the lease is held. Returns: one row or none.
-- Lost: read_back_state, sent again.
WITH held AS MATERIALIZED (SELECT scope FROM {schema}.leases
        WHERE scope = :scope AND resource = :fence_resource AND owner = :fence_owner AND token = :fence_token
          AND expires_at > (SELECT {clock}) FOR KEY SHARE)
UPDATE {schema}.states s
   SET revision = s.revision + 1, status = coalesce(:status, s.status), is_terminal = :is_terminal,
       schema_version = coalesce(:schema_version, s.schema_version), payload = :payload,
       payload_encoding = :payload_encoding, payload_format = :payload_format, request_id = :request_id,
       write_id = :write_id, updated_at = {clock}, ended_at = CASE WHEN :is_terminal THEN {clock} END,
       expires_at = CASE WHEN NOT :lift_expiry THEN coalesce({clock} + make_interval(secs => :ttl_seconds), s.expires_at) END
  FROM held
 WHERE s.scope = :scope AND s.record_id = :record_id
   AND (:expected_revision IS NULL OR s.revision = :expected_revision)
   AND (:expected_status IS NULL OR s.status = :expected_status)
   AND (:source_statuses IS NULL OR s.status = ANY (:source_statuses))
   AND NOT s.is_terminal AND s.deleted_at IS NULL AND (s.expires_at IS NULL OR s.expires_at > {clock})
RETURNING s.revision, s.status, s.is_terminal, s.schema_version, s.request_id, s.parent_id, s.created_at, s.updated_at,
          s.expires_at;

-- name: update_value
-- update_state where nothing else is to change, as is the rule: each column and condition more is set up for each call.
-- Returns: one row or none.
-- Lost: read_back_state, sent again.
UPDATE {schema}.states s
   SET revision = s.revision + 1, payload = :payload, payload_encoding = :payload_encoding, payload_format = :payload_format,
       request_id = :request_id, write_id = :write_id, updated_at = {clock}
 WHERE s.scope = :scope AND s.record_id = :record_id
   AND (:expected_revision IS NULL OR s.revision = :expected_revision)
   AND NOT s.is_terminal AND s.deleted_at IS NULL AND (s.expires_at IS NULL OR s.expires_at > {clock})
RETURNING s.revision, s.status, s.is_terminal, s.schema_version, s.request_id, s.parent_id, s.created_at, s.updated_at,
          s.expires_at;

-- name: update_value_fenced
-- update_value while the lease is held. Returns: one row or none.
-- Lost: read_back_state, sent again.
WITH held AS MATERIALIZED (SELECT scope FROM {schema}.leases
        WHERE scope = :scope AND resource = :fence_resource AND owner = :fence_owner AND token = :fence_token
          AND expires_at > (SELECT {clock}) FOR KEY SHARE)
UPDATE {schema}.states s
   SET revision = s.revision + 1, payload = :payload, payload_encoding = :payload_encoding, payload_format = :payload_format,
       request_id = :request_id, write_id = :write_id, updated_at = {clock}
  FROM held
 WHERE s.scope = :scope AND s.record_id = :record_id
   AND (:expected_revision IS NULL OR s.revision = :expected_revision)
   AND NOT s.is_terminal AND s.deleted_at IS NULL AND (s.expires_at IS NULL OR s.expires_at > {clock})
RETURNING s.revision, s.status, s.is_terminal, s.schema_version, s.request_id, s.parent_id, s.created_at, s.updated_at,
          s.expires_at;

-- name: update_states
-- update_state for many records. Those that fit are locked first, in the order of their ids, so that no two calls wait for one
-- another, and then written as they were found. Not by an UPDATE that is joined to them: its plan may read the whole table,
-- where it was made for a small one; an insertion, which always conflicts, finds each by its key. `from_statuses` and
-- `to_statuses` are the lifecycle's transitions, where it has some. Returns: many rows.
-- Lost: read_back_states.
WITH given AS MATERIALIZED (SELECT g.* FROM unnest(
          :each_record_id, :each_expected_revision, :each_expected_status, :each_status, :each_is_terminal, :each_lift_expiry,
          :each_ttl_seconds,
          :each_schema_version, :each_payload, :each_payload_encoding, :each_request_id)
          AS g (record_id, expected_revision, expected_status, status, is_terminal, lift_expiry, ttl_seconds, schema_version,
          payload, payload_encoding, request_id) ORDER BY g.record_id),
     due AS MATERIALIZED (SELECT s.*, g.* FROM given g, LATERAL (SELECT s.revision, s.status AS old_status,
               s.schema_version AS old_schema_version, s.expires_at AS old_expires_at
          FROM {schema}.states s
        WHERE s.scope = :scope AND s.record_id = g.record_id
          AND (g.expected_revision IS NULL OR s.revision = g.expected_revision)
          AND (g.expected_status IS NULL OR s.status = g.expected_status)
          AND (:from_statuses IS NULL OR g.status IS NULL OR EXISTS (
               SELECT FROM unnest(:from_statuses, :to_statuses) AS p (source, target)
                WHERE p.source = s.status AND p.target = g.status))
          AND NOT s.is_terminal AND s.deleted_at IS NULL AND (s.expires_at IS NULL OR s.expires_at > (SELECT {clock}))
          FOR NO KEY UPDATE) s)
INSERT INTO {schema}.states AS s (scope, record_id, revision, status, is_terminal, schema_version, payload, payload_encoding,
       payload_format, request_id, write_id, created_at, updated_at, expires_at, ended_at)
SELECT :scope, g.record_id, g.revision + 1, coalesce(g.status, g.old_status), g.is_terminal,
       coalesce(g.schema_version, g.old_schema_version), g.payload, g.payload_encoding, :payload_format, g.request_id,
       :write_id,
       (SELECT {clock}), (SELECT {clock}),
       CASE WHEN NOT g.lift_expiry THEN coalesce((SELECT {clock}) + make_interval(secs => g.ttl_seconds), g.old_expires_at) END,
       CASE WHEN g.is_terminal THEN (SELECT {clock}) END
  FROM due g
ON CONFLICT (scope, record_id) DO UPDATE
   SET revision = excluded.revision, status = excluded.status, is_terminal = excluded.is_terminal,
       schema_version = excluded.schema_version, payload = excluded.payload, payload_encoding = excluded.payload_encoding,
       payload_format = excluded.payload_format, request_id = excluded.request_id, write_id = excluded.write_id,
       updated_at = excluded.updated_at, expires_at = excluded.expires_at, ended_at = excluded.ended_at
RETURNING s.record_id, s.revision, s.status, s.is_terminal, s.schema_version, s.request_id, s.parent_id, s.created_at,
          s.updated_at, s.expires_at;

-- name: update_states_fenced
-- update_states while the lease is held. Returns: many rows.
-- Lost: read_back_states.
WITH held AS MATERIALIZED (SELECT scope FROM {schema}.leases
        WHERE scope = :scope AND resource = :fence_resource AND owner = :fence_owner AND token = :fence_token
          AND expires_at > (SELECT {clock}) FOR KEY SHARE),
     given AS MATERIALIZED (SELECT g.* FROM held, unnest(
          :each_record_id, :each_expected_revision, :each_expected_status, :each_status, :each_is_terminal, :each_lift_expiry,
          :each_ttl_seconds,
          :each_schema_version, :each_payload, :each_payload_encoding, :each_request_id)
          AS g (record_id, expected_revision, expected_status, status, is_terminal, lift_expiry, ttl_seconds, schema_version,
          payload, payload_encoding, request_id) ORDER BY g.record_id),
     due AS MATERIALIZED (SELECT s.*, g.* FROM given g, LATERAL (SELECT s.revision, s.status AS old_status,
               s.schema_version AS old_schema_version, s.expires_at AS old_expires_at
          FROM {schema}.states s
        WHERE s.scope = :scope AND s.record_id = g.record_id
          AND (g.expected_revision IS NULL OR s.revision = g.expected_revision)
          AND (g.expected_status IS NULL OR s.status = g.expected_status)
          AND (:from_statuses IS NULL OR g.status IS NULL OR EXISTS (
               SELECT FROM unnest(:from_statuses, :to_statuses) AS p (source, target)
                WHERE p.source = s.status AND p.target = g.status))
          AND NOT s.is_terminal AND s.deleted_at IS NULL AND (s.expires_at IS NULL OR s.expires_at > (SELECT {clock}))
          FOR NO KEY UPDATE) s)
INSERT INTO {schema}.states AS s (scope, record_id, revision, status, is_terminal, schema_version, payload, payload_encoding,
       payload_format, request_id, write_id, created_at, updated_at, expires_at, ended_at)
SELECT :scope, g.record_id, g.revision + 1, coalesce(g.status, g.old_status), g.is_terminal,
       coalesce(g.schema_version, g.old_schema_version), g.payload, g.payload_encoding, :payload_format, g.request_id,
       :write_id,
       (SELECT {clock}), (SELECT {clock}),
       CASE WHEN NOT g.lift_expiry THEN coalesce((SELECT {clock}) + make_interval(secs => g.ttl_seconds), g.old_expires_at) END,
       CASE WHEN g.is_terminal THEN (SELECT {clock}) END
  FROM due g
ON CONFLICT (scope, record_id) DO UPDATE
   SET revision = excluded.revision, status = excluded.status, is_terminal = excluded.is_terminal,
       schema_version = excluded.schema_version, payload = excluded.payload, payload_encoding = excluded.payload_encoding,
       payload_format = excluded.payload_format, request_id = excluded.request_id, write_id = excluded.write_id,
       updated_at = excluded.updated_at, expires_at = excluded.expires_at, ended_at = excluded.ended_at
RETURNING s.record_id, s.revision, s.status, s.is_terminal, s.schema_version, s.request_id, s.parent_id, s.created_at,
          s.updated_at, s.expires_at;

-- name: put_state
-- Makes a record, revives an emptied or expired row, or replaces a live record. One that may not be replaced is seen, and not
-- locked; the conflict clause looks again. With no status given a live record keeps its own. Returns: one row or none.
-- Lost: read_back_state.
WITH t AS MATERIALIZED (SELECT {clock} AS at)
INSERT INTO {schema}.states AS s (scope, record_id, revision, status, is_terminal, schema_version, payload, payload_encoding,
       payload_format, request_id, parent_id, write_id, created_at, updated_at, expires_at, ended_at)
SELECT :scope, :record_id, 1, coalesce(:status, :initial_status), :is_terminal, :schema_version, :payload, :payload_encoding,
       :payload_format, :request_id, :parent_id, :write_id, t.at, t.at, t.at + make_interval(secs => :ttl_seconds),
       CASE WHEN :is_terminal THEN t.at END
  FROM t
 WHERE NOT EXISTS (SELECT FROM {schema}.states l WHERE l.scope = :scope AND l.record_id = :record_id
          AND l.deleted_at IS NULL AND (l.expires_at IS NULL OR l.expires_at > {clock})
          AND (l.is_terminal OR l.status <> ALL (:source_statuses)))
ON CONFLICT (scope, record_id) DO UPDATE
   SET revision = s.revision + 1,
       status = CASE WHEN :status IS NULL AND s.deleted_at IS NULL
         AND (s.expires_at IS NULL OR s.expires_at > excluded.updated_at)
         THEN s.status ELSE excluded.status END,
       is_terminal = excluded.is_terminal,
       schema_version = excluded.schema_version, payload = excluded.payload, payload_encoding = excluded.payload_encoding,
       payload_format = excluded.payload_format, request_id = excluded.request_id, parent_id = excluded.parent_id,
       write_id = excluded.write_id,
       created_at = CASE WHEN s.deleted_at IS NULL AND (s.expires_at IS NULL OR s.expires_at > excluded.updated_at)
         THEN s.created_at ELSE excluded.created_at END,
       updated_at = excluded.updated_at,
       expires_at = excluded.expires_at, ended_at = excluded.ended_at, deleted_at = NULL
 WHERE s.deleted_at IS NOT NULL OR s.expires_at <= excluded.updated_at
    OR (NOT s.is_terminal AND (:source_statuses IS NULL OR s.status = ANY (:source_statuses)))
RETURNING s.revision, s.status, s.is_terminal, s.schema_version, s.request_id, s.parent_id, s.created_at, s.updated_at,
          s.expires_at;

-- name: put_state_fenced
-- put_state while the lease is held. Returns: one row or none.
-- Lost: read_back_state.
WITH held AS MATERIALIZED (SELECT scope FROM {schema}.leases
        WHERE scope = :scope AND resource = :fence_resource AND owner = :fence_owner AND token = :fence_token
          AND expires_at > (SELECT {clock}) FOR KEY SHARE),
     t AS MATERIALIZED (SELECT {clock} AS at)
INSERT INTO {schema}.states AS s (scope, record_id, revision, status, is_terminal, schema_version, payload, payload_encoding,
       payload_format, request_id, parent_id, write_id, created_at, updated_at, expires_at, ended_at)
SELECT :scope, :record_id, 1, coalesce(:status, :initial_status), :is_terminal, :schema_version, :payload, :payload_encoding,
       :payload_format, :request_id, :parent_id, :write_id, t.at, t.at, t.at + make_interval(secs => :ttl_seconds),
       CASE WHEN :is_terminal THEN t.at END
  FROM held, t
 WHERE NOT EXISTS (SELECT FROM {schema}.states l WHERE l.scope = :scope AND l.record_id = :record_id
          AND l.deleted_at IS NULL AND (l.expires_at IS NULL OR l.expires_at > {clock})
          AND (l.is_terminal OR l.status <> ALL (:source_statuses)))
ON CONFLICT (scope, record_id) DO UPDATE
   SET revision = s.revision + 1,
       status = CASE WHEN :status IS NULL AND s.deleted_at IS NULL
         AND (s.expires_at IS NULL OR s.expires_at > excluded.updated_at)
         THEN s.status ELSE excluded.status END,
       is_terminal = excluded.is_terminal,
       schema_version = excluded.schema_version, payload = excluded.payload, payload_encoding = excluded.payload_encoding,
       payload_format = excluded.payload_format, request_id = excluded.request_id, parent_id = excluded.parent_id,
       write_id = excluded.write_id,
       created_at = CASE WHEN s.deleted_at IS NULL AND (s.expires_at IS NULL OR s.expires_at > excluded.updated_at)
         THEN s.created_at ELSE excluded.created_at END,
       updated_at = excluded.updated_at,
       expires_at = excluded.expires_at, ended_at = excluded.ended_at, deleted_at = NULL
 WHERE s.deleted_at IS NOT NULL OR s.expires_at <= excluded.updated_at
    OR (NOT s.is_terminal AND (:source_statuses IS NULL OR s.status = ANY (:source_statuses)))
RETURNING s.revision, s.status, s.is_terminal, s.schema_version, s.request_id, s.parent_id, s.created_at, s.updated_at,
          s.expires_at;

-- name: delete_state
-- Empties a live record at its expected revision; the row keeps the revision for a day. Returns: one row or none.
-- Lost: read_back_state, sent again.
UPDATE {schema}.states s
   SET revision = s.revision + 1, is_terminal = false, payload = NULL, request_id = NULL, parent_id = NULL,
       write_id = :write_id, updated_at = {clock}, expires_at = NULL, ended_at = {clock}, deleted_at = {clock}
 WHERE s.scope = :scope AND s.record_id = :record_id
   AND (:expected_revision IS NULL OR s.revision = :expected_revision)
   AND s.deleted_at IS NULL AND (s.expires_at IS NULL OR s.expires_at > {clock})
RETURNING s.revision;

-- name: delete_state_fenced
-- delete_state while the lease is held. Returns: one row or none.
-- Lost: read_back_state, sent again.
WITH held AS MATERIALIZED (SELECT scope FROM {schema}.leases
        WHERE scope = :scope AND resource = :fence_resource AND owner = :fence_owner AND token = :fence_token
          AND expires_at > (SELECT {clock}) FOR KEY SHARE)
UPDATE {schema}.states s
   SET revision = s.revision + 1, is_terminal = false, payload = NULL, request_id = NULL, parent_id = NULL,
       write_id = :write_id, updated_at = {clock}, expires_at = NULL, ended_at = {clock}, deleted_at = {clock}
  FROM held
 WHERE s.scope = :scope AND s.record_id = :record_id
   AND (:expected_revision IS NULL OR s.revision = :expected_revision)
   AND s.deleted_at IS NULL AND (s.expires_at IS NULL OR s.expires_at > {clock})
RETURNING s.revision;

-- name: read_back_state
-- What a write made of the record, if nobody has written it since. Returns: one row or none.
SELECT s.revision, s.status, s.is_terminal, s.schema_version, s.request_id, s.parent_id, s.created_at, s.updated_at,
       s.expires_at
  FROM {schema}.states s WHERE s.scope = :scope AND s.record_id = :record_id AND s.write_id = :write_id;

-- name: read_back_states
-- read_back_state for many records. Returns: many rows.
SELECT s.record_id, s.revision, s.status, s.is_terminal, s.schema_version, s.request_id, s.parent_id, s.created_at,
       s.updated_at, s.expires_at
  FROM unnest(:each_record_id) AS g (record_id),
       LATERAL (SELECT * FROM {schema}.states l
         WHERE l.scope = :scope AND l.record_id = g.record_id AND l.write_id = :write_id LIMIT 1) s;

-- name: explain_state
-- Why a write was refused: the live record as it is. Returns: one row or none.
SELECT s.revision, s.status, s.is_terminal
  FROM {schema}.states s
 WHERE s.scope = :scope AND s.record_id = :record_id
   AND s.deleted_at IS NULL AND (s.expires_at IS NULL OR s.expires_at > {clock});

-- name: explain_states
-- explain_state for many records: those that are live. Returns: many rows.
SELECT g.record_id, s.revision, s.status, s.is_terminal
  FROM unnest(:each_record_id) AS g (record_id),
       LATERAL (SELECT * FROM {schema}.states l
         WHERE l.scope = :scope AND l.record_id = g.record_id
           AND l.deleted_at IS NULL AND (l.expires_at IS NULL OR l.expires_at > (SELECT {clock})) LIMIT 1) s;

-- name: sweep_ended_states
-- Empties a page of records of one scope that ended that long ago, as delete_state does: a writer of their life stays
-- refused. Says how many, when the last of the page ended, and its size. Returns: one row.
WITH gone AS MATERIALIZED (SELECT scope, record_id, ended_at FROM {schema}.states
        WHERE scope = :scope AND ended_at >= coalesce(nullif(:after, '')::timestamptz, '-infinity')
          AND ended_at <= (SELECT {clock}) - make_interval(secs => :age_seconds) AND deleted_at IS NULL
        ORDER BY ended_at LIMIT :page_size FOR UPDATE SKIP LOCKED),
     t AS MATERIALIZED (SELECT {clock} AS at),
     emptied AS (UPDATE {schema}.states s
        SET revision = s.revision + 1, is_terminal = false, payload = NULL, request_id = NULL, parent_id = NULL,
            write_id = :write_id, updated_at = t.at, expires_at = NULL, ended_at = t.at, deleted_at = t.at
       FROM gone, t
      WHERE s.scope = gone.scope AND s.record_id = gone.record_id RETURNING 1)
SELECT (SELECT count(*) FROM emptied), (SELECT max(ended_at) FROM gone), (SELECT count(*) FROM gone);

-- name: sweep_deleted_states
-- Removes a page of emptied rows of one scope that were deleted that long ago. Says how many, when the last of the page
-- was deleted, and its size. Returns: one row.
WITH gone AS MATERIALIZED (SELECT scope, record_id, deleted_at FROM {schema}.states
        WHERE scope = :scope AND deleted_at >= coalesce(nullif(:after, '')::timestamptz, '-infinity')
          AND deleted_at <= (SELECT {clock}) - make_interval(secs => :age_seconds)
        ORDER BY deleted_at LIMIT :page_size FOR UPDATE SKIP LOCKED),
     removed AS (DELETE FROM {schema}.states s USING gone
      WHERE s.scope = gone.scope AND s.record_id = gone.record_id RETURNING 1)
SELECT (SELECT count(*) FROM removed), (SELECT max(deleted_at) FROM gone), (SELECT count(*) FROM gone);

-- name: sweep_expired_states
-- Removes a page of records of one scope that expired that long ago. Says how many, when the last of the page expired,
-- and its size. Returns: one row.
WITH gone AS MATERIALIZED (SELECT scope, record_id, expires_at FROM {schema}.states
        WHERE scope = :scope AND expires_at >= coalesce(nullif(:after, '')::timestamptz, '-infinity')
          AND expires_at <= (SELECT {clock}) - make_interval(secs => :age_seconds)
        ORDER BY expires_at LIMIT :page_size FOR UPDATE SKIP LOCKED),
     removed AS (DELETE FROM {schema}.states s USING gone
      WHERE s.scope = gone.scope AND s.record_id = gone.record_id RETURNING 1)
SELECT (SELECT count(*) FROM removed), (SELECT max(expires_at) FROM gone), (SELECT count(*) FROM gone);
