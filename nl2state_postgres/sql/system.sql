-- What crosses tenants, and what a session reads when it is set up.

-- name: set_up_session
-- The settings that our statements rely on. A plan that was made on an empty table would stay a sequential scan; one that was
-- made for a few rows, a bitmap of all the rows of a scope, sorted for a page of them; and a grant that a crash can lose could
-- be issued again. Up to PostgreSQL 17, a plan with a node that is switched off costs
-- enough to be compiled, for a quarter of a second: so no JIT. Returns: one row.
SELECT set_config('TimeZone', 'UTC', false), set_config('default_transaction_isolation', 'read committed', false),
       set_config('default_transaction_read_only', 'off', false), set_config('enable_seqscan', 'off', false),
       set_config('enable_bitmapscan', 'off', false), set_config('jit', 'off', false),
       set_config('synchronous_commit', 'on', false), set_config('lock_timeout', :lock_timeout, false),
       set_config('statement_timeout', :statement_timeout, false),
       set_config('idle_in_transaction_session_timeout', :idle_timeout, false);

-- name: read_epoch
-- What the schema knows of its server, and the server's timeline (NULL in recovery). Returns: one row.
SELECT m.epoch_base, m.timeline,
       CASE WHEN NOT pg_is_in_recovery()
            THEN ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::bigint END
  FROM {schema}.metadata m;

-- name: note_timeline
-- Remembers the server's timeline. A lower one than the last says that the data came from another server (a restored dump,
-- an upgrade): then the epochs of that one are added to the base, once. Returns: one row or none.
UPDATE {schema}.metadata m
   SET epoch_base = CASE WHEN :timeline < m.timeline THEN m.epoch_base + m.timeline ELSE m.epoch_base END, timeline = :timeline
 WHERE m.timeline <> :timeline
RETURNING m.epoch_base;

-- name: next_scope
-- The least scope after this one that has a row of any noun; NULL where there is none. Returns: one row.
SELECT least((SELECT scope FROM {schema}.states WHERE scope > :scope ORDER BY scope LIMIT 1),
             (SELECT scope FROM {schema}.leases WHERE scope > :scope ORDER BY scope LIMIT 1),
             (SELECT scope FROM {schema}.keys WHERE scope > :scope ORDER BY scope LIMIT 1));
