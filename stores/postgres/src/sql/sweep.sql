-- Examines some rows behind a new key, in the order of the keys, and deletes those that have expired. Keys are spread
-- evenly, so these are random rows. It waits for no lock.
DELETE FROM {table} AS r USING ({clock}) c
WHERE r.key = ANY (ARRAY(
  SELECT e.key
  FROM (SELECT f.key FROM {table} f WHERE f.key > @key ORDER BY f.key LIMIT @count) g
  JOIN {table} e ON e.key = g.key
  CROSS JOIN ({clock}) d
  WHERE e.expires <= timestamptz 'epoch' + (d.now / 1000) * interval '1 microsecond'
  FOR UPDATE OF e SKIP LOCKED
))
AND r.expires <= {changed}
