-- The ledger of migrations, and what is done around it.

-- name: read_server_encoding
-- How the database encodes text. Returns: one row.
SELECT current_setting('server_encoding');

-- name: find_ledger
-- Whether the schema has a ledger. Returns: one row or none.
SELECT 1 FROM pg_catalog.pg_tables WHERE schemaname = :schema_name AND tablename = 'migrations';

-- name: find_schema
-- Whether the schema is there. Returns: one row or none.
SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = :schema_name;

-- name: read_ledger
-- The checksums of what was applied, by version, as one object. Returns: one row.
SELECT coalesce(json_object_agg(version, checksum), json_build_object()) FROM {schema}.migrations;

-- name: lock_migrations
-- Waits for whoever migrates this schema, for a minute at most; held to the end of the transaction. Returns: one row.
SELECT set_config('lock_timeout', '60s', true), set_config('statement_timeout', '0', true), pg_advisory_xact_lock(:lock_key);

-- name: create_schema
-- Makes the schema. Returns: nothing.
CREATE SCHEMA {schema};

-- name: create_ledger
-- Makes the ledger. Returns: nothing.
CREATE TABLE IF NOT EXISTS {schema}.migrations (
  version integer PRIMARY KEY, name text NOT NULL, checksum text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now());

-- name: note_migration
-- Enters a migration into the ledger. Returns: a count.
INSERT INTO {schema}.migrations (version, name, checksum) VALUES (:version, :name, :checksum);
