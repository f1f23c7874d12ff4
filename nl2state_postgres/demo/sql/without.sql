-- What people do today, for `nl2state demo --without`: a lease row, an unconditional write, and a table of keys that are
-- done. Each statement commits by itself.

-- name: create_schema
-- Makes the schema. Returns: nothing.
CREATE SCHEMA {schema};

-- name: create_leases
-- Makes the table of leases: a row is a lease that is held. Returns: nothing.
CREATE TABLE {schema}.leases (
  scope uuid NOT NULL, resource text NOT NULL, owner text NOT NULL, expires_at timestamptz NOT NULL,
  PRIMARY KEY (scope, resource)
);

-- name: create_states
-- Makes the table of records. Returns: nothing.
CREATE TABLE {schema}.states (scope uuid NOT NULL, record_id text NOT NULL, payload bytea NOT NULL, PRIMARY KEY (scope, record_id));

-- name: create_keys
-- Makes the table of keys that are done. Returns: nothing.
CREATE TABLE {schema}.keys (scope uuid NOT NULL, key text NOT NULL, PRIMARY KEY (scope, key));

-- name: take_lease
-- Takes a lease that is free or expired; says whether it had expired: xmax is 0 only in a row that is new. Returns: one row or none.
INSERT INTO {schema}.leases AS l (scope, resource, owner, expires_at)
VALUES (:scope, :resource, :owner, {clock} + make_interval(secs => :ttl_seconds))
ON CONFLICT (scope, resource) DO UPDATE SET owner = excluded.owner, expires_at = excluded.expires_at
 WHERE l.expires_at <= {clock}
RETURNING l.xmax <> 0;

-- name: find_key
-- Whether a key is done. Returns: one row or none.
SELECT 1 FROM {schema}.keys WHERE scope = :scope AND key = :key;

-- name: read_state
-- Reads a record. Returns: one row or none.
SELECT payload FROM {schema}.states WHERE scope = :scope AND record_id = :record_id;

-- name: write_state
-- Writes a record, whatever is there. Returns: a count.
INSERT INTO {schema}.states (scope, record_id, payload) VALUES (:scope, :record_id, :payload)
ON CONFLICT (scope, record_id) DO UPDATE SET payload = excluded.payload;

-- name: mark_key
-- Marks a key as done. Returns: a count.
INSERT INTO {schema}.keys (scope, key) VALUES (:scope, :key) ON CONFLICT DO NOTHING;

-- name: free_lease
-- Frees a lease, if it is still its owner's. Returns: a count.
DELETE FROM {schema}.leases WHERE scope = :scope AND resource = :resource AND owner = :owner;
