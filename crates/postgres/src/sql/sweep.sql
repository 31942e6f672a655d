-- Examines some rows behind a new key, in the order of the keys, and deletes those that expired some time ago. Keys are
-- spread evenly, so these are random rows. It waits for no lock.
DELETE FROM {table} AS r USING ({clock}) c
WHERE r.key = ANY (ARRAY(
  SELECT e.key
  FROM ({clock}) d
  CROSS JOIN (SELECT f.key FROM {table} f WHERE f.key > @key ORDER BY f.key LIMIT @count) g
  CROSS JOIN LATERAL (
    SELECT h.key FROM {table} h
    WHERE h.key = g.key AND h.expires <= timestamptz 'epoch' + (d.now / 1000) * interval '1 microsecond' - {kept}
    FOR UPDATE SKIP LOCKED
  ) e
))
AND r.expires <= {changed} - {kept} AND (SELECT {checked})
