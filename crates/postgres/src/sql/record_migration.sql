-- tower-sluice: what is no limit over time: requests in flight, queues, units that were bought, free retries.
--
-- Logged, so that a crash of the server loses no unit that was bought.
CREATE TABLE IF NOT EXISTS {records} (
  -- The name of the limiter, 128 bits of a hash over the secret and the key in base64url, and the kind of the record.
  name text COLLATE "C" PRIMARY KEY,
  value bytea NOT NULL,
  -- From then on, there is no such record, and the row may be deleted.
  expires timestamptz NOT NULL
) WITH (fillfactor = 85)
