-- Decides on several keys, of any algorithms: charges the first of the sets whose keys all have room, or no key.
--
-- A set is a number whose bit for a key is 1 shifted by the place of the key in the arrays.
--
-- Two of these statements do not wait for each other in a circle. They lock the rows that they see in the order of the
-- keys, then insert the others in the order of the keys, and then update rows that they have locked. One that inserts
-- waits only for another one that has inserted the same key, and so has locked all that it will: an insert with DO
-- NOTHING does not wait for the lock of a row. Among those that insert, each waits for a key behind those that it has
-- inserted. One that still locks is waited for only by others that still lock, for a key before the one that it waits
-- for itself. Decisions on one key wait for nothing while they have a lock, and sweeps skip locked rows.
--
-- A row that another statement has created since this one began is not seen, and not inserted. If none of the new keys
-- could be inserted, nothing is charged. If some could be, the statement fails as a whole. It is sent again in both
-- cases.
WITH asked AS MATERIALIZED (
  SELECT q.key, q.limiter, q.kind, q.cost, q.quota_limit, q.quota_burst, q.quota_period, q.since, q.first, q.second, 1::int8 << (q.place - 1)::int4 AS bit
  FROM unnest(@keys, @limiters, @kinds, @costs, @limits, @bursts, @periods, @sinces, @firsts, @seconds)
    WITH ORDINALITY AS q(key, limiter, kind, cost, quota_limit, quota_burst, quota_period, since, first, second, place)
  WHERE {checked}
),
-- One after the other, in the order of the keys.
locked AS MATERIALIZED (
  SELECT s.* FROM (SELECT key FROM asked ORDER BY key OFFSET 0) q
  CROSS JOIN LATERAL (SELECT r.* FROM {table} r WHERE r.key = q.key FOR NO KEY UPDATE) s
),
-- The clock is read when all rows are locked.
clock AS MATERIALIZED (
  SELECT {now} AS now FROM (SELECT count(*) AS rows FROM locked OFFSET 0) l
),
decided AS MATERIALIZED (
  {branches}
),
chosen AS MATERIALIZED (
  SELECT w.number, w.bits, l.is_covered
  FROM (
    SELECT coalesce(bit_or(bit) FILTER (WHERE NOT is_admitted), 0) AS lacking, bool_and(is_covered) AS is_covered FROM decided
  ) l
  LEFT JOIN LATERAL (
    SELECT u.number, u.bits FROM unnest(@sets) WITH ORDINALITY AS u(bits, number)
    WHERE l.is_covered AND u.bits & l.lacking = 0
    ORDER BY u.number LIMIT 1
  ) w ON true
),
charged AS MATERIALIZED (
  SELECT d.* FROM decided d JOIN chosen h ON d.bit & h.bits <> 0 WHERE d.is_charged
),
inserted AS (
  INSERT INTO {table} (key, limiter, quota_limit, quota_burst, quota_period, number, previous, used, changed, charged, expires)
  SELECT d.key, d.limiter, d.quota_limit, d.quota_burst, d.quota_period, d.number, d.previous, d.used, d.changed, 1, d.expires
  FROM charged d WHERE d.is_new ORDER BY d.key
  ON CONFLICT (key) DO NOTHING
  RETURNING key
),
made AS MATERIALIZED (
  SELECT (SELECT count(*) FROM inserted) AS made, (SELECT count(*) FROM charged WHERE is_new) AS wanted
),
-- An insert finds its row by the primary key, whatever the planner knows of the table, and in the version that was
-- locked, which may be a later one than this statement sees.
updated AS (
  INSERT INTO {table} AS t (key, limiter, quota_limit, quota_burst, quota_period, number, previous, used, changed, charged, expires)
  SELECT d.key, d.limiter, d.quota_limit, d.quota_burst, d.quota_period, d.number, d.previous, d.used, d.changed, 1, d.expires
  FROM charged d, made m
  WHERE NOT d.is_new AND m.made = m.wanted
  ON CONFLICT (key) DO UPDATE SET quota_limit = excluded.quota_limit, quota_burst = excluded.quota_burst, quota_period = excluded.quota_period, number = excluded.number, previous = excluded.previous, used = excluded.used, changed = excluded.changed, charged = 1, expires = excluded.expires, banned_until = NULL, owing_until = NULL, allowed_until = NULL, reason = NULL
  RETURNING t.key
)
SELECT c.now,
  CASE
    WHEN m.made = m.wanted AND (SELECT count(*) FROM updated) = (SELECT count(*) FROM charged WHERE NOT is_new) THEN coalesce(h.number, 0)
    WHEN m.made = 0 AND m.wanted > 0 THEN -1
    ELSE ('sluice: another statement has created or deleted one of the keys, so this one charges nothing, and is sent again' || m.made)::int8
  END,
  h.is_covered::int4::int8,
  d.bit,
  {row}, {changed_nanos}
FROM decided d CROSS JOIN clock c CROSS JOIN chosen h CROSS JOIN made m
LEFT JOIN locked r ON r.key = d.key
