-- What crosses tenants, and what a session reads when it is set up.

-- name: set_up_session
-- The settings that our statements rely on. A plan that was made on an empty table would stay a sequential scan; one that was
-- made for a few rows, a bitmap of all the rows of a scope, sorted for a page of them; and a grant that a crash can lose could
-- be issued again. Up to PostgreSQL 17, a plan with a node that is switched off costs
-- enough to be compiled, for a quarter of a second: so no JIT. And a statement that is planned anew for its values costs twice
-- what it runs: so one plan for all of them. Returns: one row.
SELECT set_config('TimeZone', 'UTC', false), set_config('default_transaction_isolation', 'read committed', false),
       set_config('default_transaction_read_only', 'off', false), set_config('enable_seqscan', 'off', false),
       set_config('enable_bitmapscan', 'off', false), set_config('jit', 'off', false),
       set_config('plan_cache_mode', 'force_generic_plan', false),
       set_config('synchronous_commit', 'on', false), set_config('lock_timeout', :lock_timeout, false),
       set_config('statement_timeout', :statement_timeout, false),
       set_config('idle_in_transaction_session_timeout', :idle_timeout, false);

-- name: note_timeline
-- Remembers the server's timeline, and so the base that it is added to. Each grant reckons with both, noted or not.
-- Returns: a count.
UPDATE {schema}.metadata m SET epoch_base = e.epoch - e.timeline, timeline = e.timeline
  FROM {schema}.epoch e WHERE m.timeline <> e.timeline;

-- name: bound_lock_waits
-- Bounds how long this transaction waits for one lock. Returns: one row.
SELECT set_config('lock_timeout', :lock_timeout, true);

-- name: read_epoch
-- The epoch of tokens. It fails in recovery. Returns: one row.
SELECT epoch FROM {schema}.epoch;

-- name: read_session
-- The settings that our statements rely on, of a session that we do not set up. Returns: one row.
SELECT current_setting('default_transaction_isolation'), current_setting('client_encoding'),
       current_setting('synchronous_commit'), current_setting('lock_timeout'),
       current_setting('statement_timeout'), current_setting('idle_in_transaction_session_timeout');

-- name: read_transaction
-- The settings of the open transaction that our writes rely on. Returns: one row.
SELECT current_setting('transaction_isolation'), current_setting('transaction_read_only'), current_setting('client_encoding');

-- name: next_scope
-- The least scope after this one that has a row of any noun; NULL where there is none. Returns: one row.
SELECT least((SELECT scope FROM {schema}.states WHERE scope > :scope ORDER BY scope LIMIT 1),
             (SELECT scope FROM {schema}.leases WHERE scope > :scope ORDER BY scope LIMIT 1),
             (SELECT scope FROM {schema}.keys WHERE scope > :scope ORDER BY scope LIMIT 1));
