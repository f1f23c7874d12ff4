-- The demo's schema on a user's own server.

-- name: bound_lock_waits
-- Bounds how long dropping it waits for what uses it. Returns: one row.
SELECT set_config('lock_timeout', :lock_timeout, false);

-- name: drop_schema
-- Drops it, with all that is in it. Returns: nothing.
DROP SCHEMA IF EXISTS {schema} CASCADE;
