-- Charges a key by hand that had no row: writes it, and the record of the reference, or neither.
--
-- The record is written only if the row was. If it is known then, another statement has entered the reference since the
-- key was read, and its row is gone again: this one fails as a whole, by a cast.
WITH made AS (
  INSERT INTO {table} AS r (key, limiter, quota_limit, quota_burst, quota_period, number, previous, used, changed, charged, expires, banned_until, owing_until, allowed_until, reason)
  SELECT @key, @limiter, @limit, @burst, @period, @number, @previous, @used, {changed}, 0, {instant_of_insert}, @banned, @owing, @until, @reason
  FROM (SELECT @written AS now OFFSET 0) c
  WHERE {checked}
  ON CONFLICT (key) DO NOTHING
  RETURNING r.key
),
claimed AS (
  INSERT INTO {records} AS r (name, value, expires)
  SELECT @name, ''::bytea, {record_expires} FROM made m CROSS JOIN ({clock}) c
  ON CONFLICT (name) DO UPDATE SET value = excluded.value, expires = excluded.expires
  WHERE r.expires <= {record_now}
  RETURNING r.name
)
SELECT CASE WHEN EXISTS (SELECT FROM claimed) THEN 1::int8
  ELSE ('sluice: another statement has entered the reference, so this one charges nothing' || (SELECT count(*) FROM made))::int8
  END
FROM made
