-- tower-sluice: one row per key, of all limiters.
--
-- UNLOGGED: a crash of the server empties the table, and then all keys have their full budgets. To keep the budgets, at
-- the price of the write-ahead log, leave the word out, or say later: ALTER TABLE {table} SET LOGGED.
--
-- No index covers a column that a decision changes, and pages are not filled up. So a decision replaces its row within
-- the page, and leaves no work behind in an index. The write-ahead log has what is between the first byte that a decision
-- changes and the last one: so what it changes is together.
CREATE UNLOGGED TABLE IF NOT EXISTS {table} (
  -- 128 bits of a hash over the secret, the limiter, its algorithm and the key.
  key uuid PRIMARY KEY,
  -- The name of the limiter, for people.
  limiter text NOT NULL,
  -- The quota under which the state is kept. The period is in nanoseconds.
  quota_limit bigint NOT NULL,
  quota_burst bigint NOT NULL,
  quota_period bigint NOT NULL,
  -- The units used in the sliding window before.
  previous bigint NOT NULL,
  -- The units used in the window.
  used bigint NOT NULL,
  -- Of a bucket, when its debt is paid, in units of 1/limit nanosecond. Of a fixed or a sliding window, its number. Of
  -- a window of the calendar, the nanosecond at which it ends.
  number numeric NOT NULL,
  -- The server's clock at the last decision.
  changed timestamptz NOT NULL,
  -- From then on, the row may be deleted.
  expires timestamptz NOT NULL,
  -- How many requests the last decision has charged.
  charged integer NOT NULL,
  -- The ends of the ban, the debt and the allowance of the key, in nanoseconds since 1970; NULL: never. While the key
  -- owes something, its state is as of the end of the debt.
  banned_until numeric,
  owing_until numeric,
  allowed_until numeric,
  -- Why an operator has banned or allowed the key.
  reason text,
  -- How often the key was banned, if its bans grow, and until when that is remembered.
  bans integer,
  bans_until numeric
) WITH (fillfactor = 85)
