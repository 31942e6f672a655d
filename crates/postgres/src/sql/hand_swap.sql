-- Charges a key by hand: replaces its row, and writes the record of the reference, or does neither.
--
-- The row is locked first, in the version that was read. So nobody changes it from then on, and of two charges with one
-- reference, the second sees the row as the first has left it. The record is written only if the row was locked, and
-- the row is replaced only if the record was written.
--
-- It waits for no record while another charge waits for its row: records of references are written only by charges to
-- their key, which have its row locked.
WITH locked AS MATERIALIZED (
  SELECT r.key FROM {table} r
  WHERE r.key = @key AND (SELECT {checked}) AND r.xmin::text = @version
  FOR NO KEY UPDATE
),
claimed AS (
  INSERT INTO {records} AS r (name, value, expires)
  SELECT @name, ''::bytea, {record_expires} FROM locked l CROSS JOIN ({clock}) c
  ON CONFLICT (name) DO UPDATE SET value = excluded.value, expires = excluded.expires
  WHERE r.expires <= {record_now}
  RETURNING r.name
)
UPDATE {table} AS r SET (quota_limit, quota_burst, quota_period, number, previous, used, changed, charged, expires, banned_until, owing_until, allowed_until, reason) = (
  SELECT @limit, @burst, @period, @number, @previous, @used, {changed}, 0, {instant_of_swap}, @banned, @owing, @until, @reason
  FROM (SELECT @written AS now OFFSET 0) c
)
WHERE r.key = @key AND EXISTS (SELECT FROM claimed)
RETURNING 1::int8
