-- States, leases, idempotency keys, and what the schema knows of its server.
-- No foreign keys between nouns, and every key begins with the scope: the tables can be distributed by it as they are.

CREATE TABLE {schema}.metadata (
  singleton   boolean PRIMARY KEY DEFAULT true CHECK (singleton),
  epoch_base  bigint  NOT NULL,  -- added to the server's timeline to make the epoch of tokens
  timeline    bigint  NOT NULL   -- the last one seen: a lower one says that this is another server
);
INSERT INTO {schema}.metadata (epoch_base, timeline) VALUES (0, 0);

-- The server's timeline, and the epoch of tokens now: it rises with a fail-over. A timeline lower than the last one that was
-- noted says that the data came from another server (a restored dump, an upgrade): then the epochs of that one come first.
CREATE VIEW {schema}.epoch AS
SELECT s.timeline, CASE WHEN s.timeline < m.timeline THEN m.timeline ELSE 0 END + m.epoch_base + s.timeline AS epoch
  FROM {schema}.metadata m,
       (SELECT ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::bigint) AS s (timeline);

CREATE TABLE {schema}.states (
  scope             uuid              NOT NULL,
  record_id         text COLLATE "C"  NOT NULL,
  revision          bigint            NOT NULL,
  status            text COLLATE "C"  NOT NULL,
  is_terminal       boolean           NOT NULL,
  schema_version    bigint            NOT NULL,
  payload           bytea,                      -- NULL: deleted
  payload_encoding  smallint          NOT NULL,
  payload_format    smallint          NOT NULL,
  request_id        text COLLATE "C",
  parent_id         text COLLATE "C",
  write_id          uuid              NOT NULL,
  created_at        timestamptz       NOT NULL,
  updated_at        timestamptz       NOT NULL,
  expires_at        timestamptz,
  ended_at          timestamptz,                -- when it became terminal, or was deleted
  deleted_at        timestamptz,
  PRIMARY KEY (scope, record_id)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

-- For retention: one for each sweep, which would else read past the rows of another. These columns are set seldom, so that
-- an ordinary update stays HOT.
CREATE INDEX states_ended ON {schema}.states (scope, ended_at) WHERE ended_at IS NOT NULL AND deleted_at IS NULL;
CREATE INDEX states_deleted ON {schema}.states (scope, deleted_at) WHERE deleted_at IS NOT NULL;
CREATE INDEX states_expiring ON {schema}.states (scope, expires_at) WHERE expires_at IS NOT NULL;

CREATE TABLE {schema}.leases (
  scope        uuid              NOT NULL,
  resource     text COLLATE "C"  NOT NULL,
  owner        text COLLATE "C",                -- NULL: free
  token        bigint            NOT NULL,
  turn         uuid              NOT NULL,      -- the write_id of the call that handed it over last
  ttl_seconds  double precision  NOT NULL,
  metadata     bytea,
  write_id     uuid              NOT NULL,
  acquired_at  timestamptz       NOT NULL,
  expires_at   timestamptz       NOT NULL,      -- of a free one: when it came free
  PRIMARY KEY (scope, resource)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

-- Nothing looks this up. It makes each change of `turn` a key update, which a fenced write's FOR KEY SHARE cannot pass by;
-- so no unique index may ever contain a column that a renewal changes. No two rows share a turn, because two first grants
-- of a resource, at once, would else violate this index, which is not the one that ON CONFLICT watches.
CREATE UNIQUE INDEX leases_turn ON {schema}.leases (scope, resource, turn);

CREATE TABLE {schema}.keys (
  scope                uuid              NOT NULL,
  key                  text COLLATE "C"  NOT NULL,
  fingerprint          bytea             NOT NULL,  -- of the request, and of the record where the key is bound to one
  record_id            text COLLATE "C",
  attempt              bigint            NOT NULL,
  write_id             uuid              NOT NULL,
  attempt_ttl_seconds  double precision  NOT NULL,
  result_ttl_seconds   double precision  NOT NULL,
  reserved_at          timestamptz       NOT NULL,
  claim_until          timestamptz       NOT NULL,
  completed_at         timestamptz,
  outcome              bytea,                       -- NULL: none yet, or its fingerprint alone
  outcome_encoding     smallint,
  outcome_format       smallint,
  outcome_fingerprint  bytea,
  expires_at           timestamptz       NOT NULL,
  PRIMARY KEY (scope, key)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
