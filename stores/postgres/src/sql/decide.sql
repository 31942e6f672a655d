INSERT INTO {table} AS r (key, limiter, quota_limit, quota_burst, quota_period, number, previous, used, changed, charged, expires)
SELECT @key, @limiter, @limit, @burst, @period, n.number, n.previous, n.used, {changed}, d.charged, {fresh_expires}
FROM ({clock}) c
CROSS JOIN LATERAL (SELECT ({fresh_charged})::int4 AS charged OFFSET 0) d
CROSS JOIN LATERAL (SELECT {fresh_state} OFFSET 0) n
WHERE {covered}
ON CONFLICT (key) DO UPDATE SET (quota_limit, quota_burst, quota_period, number, previous, used, changed, charged, expires, banned_until, owing_until, allowed_until, reason) = (
  SELECT
    CASE WHEN k.stays THEN r.quota_limit ELSE @limit END,
    CASE WHEN k.stays THEN r.quota_burst ELSE @burst END,
    CASE WHEN k.stays THEN r.quota_period ELSE @period END,
    CASE WHEN k.stays THEN p.number ELSE n.number END,
    CASE WHEN k.stays THEN r.previous ELSE n.previous END,
    CASE WHEN k.stays THEN r.used ELSE n.used END,
    {changed},
    d.charged,
    CASE WHEN k.stays THEN r.expires ELSE {expires} END,
    CASE WHEN k.stays THEN s.banned_until END,
    CASE WHEN k.stays THEN s.owing_until END,
    CASE WHEN k.stays THEN s.allowed_until END,
    CASE WHEN k.stays THEN r.reason END
  FROM ({clock}) c
  CROSS JOIN LATERAL ({ahead}) a
  CROSS JOIN LATERAL ({standing}) s
  CROSS JOIN LATERAL (SELECT s.is_in_force OR NOT ({covered}) AS stays OFFSET 0) k
  CROSS JOIN LATERAL (SELECT {corrected} AS number OFFSET 0) p
  CROSS JOIN LATERAL ({counted}) o
  CROSS JOIN LATERAL (SELECT CASE WHEN k.stays THEN 0 ELSE greatest({charged}, 0)::int4 END AS charged OFFSET 0) d
  CROSS JOIN LATERAL (SELECT {state} OFFSET 0) n
)
RETURNING coalesce(@now, {changed_nanos}), {row}, charged::int8, (xmax = 0)::int4::int8
