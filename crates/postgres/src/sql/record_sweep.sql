-- As `sweep.sql`, of the records.
DELETE FROM {records} AS r
WHERE r.name = ANY (ARRAY(
  SELECT e.name
  FROM (SELECT f.name FROM {records} f WHERE f.name > @name ORDER BY f.name LIMIT @count) g
  CROSS JOIN LATERAL (
    SELECT h.name FROM {records} h
    WHERE h.name = g.name AND h.expires <= {record_now}
    FOR UPDATE SKIP LOCKED
  ) e
))
AND r.expires <= {record_now} AND (SELECT {checked})
