-- tower-sluice: one row per key, of all limiters.
--
-- UNLOGGED: a crash of the server empties the table, and then all keys have their full budgets. Leave the word out, or
-- say ALTER TABLE {table} SET LOGGED, to keep the budgets, at the price of the write-ahead log.
--
-- No index covers a column that a decision changes, and pages are not filled up: so a decision replaces its row within
-- the page, and leaves no work behind in an index.
CREATE UNLOGGED TABLE IF NOT EXISTS {table} (
  key uuid PRIMARY KEY,           -- 128 bits of a hash over the secret, the limiter and the key
  limiter text NOT NULL,          -- the name of the limiter, for people
  quota_limit bigint NOT NULL,    -- the quota under which the state is kept
  quota_burst bigint NOT NULL,
  quota_period bigint NOT NULL,   -- nanoseconds
  number numeric NOT NULL,        -- bucket: when its debt is paid, in units of 1/limit nanosecond; fixed and sliding window: its number; calendar: the nanosecond at which it ends
  previous bigint NOT NULL,       -- sliding window: the units used in the window before
  used bigint NOT NULL,           -- windows: the units used
  changed timestamptz NOT NULL,   -- the server's clock at the last decision
  charged integer NOT NULL,       -- how many requests that decision has charged
  expires timestamptz NOT NULL,   -- from then on, the row may be deleted
  banned_until numeric,           -- nanoseconds since 1970; NULL: never
  owing_until numeric,            -- while the key owes something, its state is as of this instant
  allowed_until numeric,
  reason text,                    -- why an operator has banned or allowed the key
  bans integer,                   -- how often the key was banned, if its bans grow
  bans_until numeric              -- and until when that is remembered
) WITH (fillfactor = 70)
