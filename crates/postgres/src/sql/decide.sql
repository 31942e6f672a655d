INSERT INTO {table} AS r (key, limiter, quota_limit, quota_burst, quota_period, number, previous, used, changed, charged, expires)
SELECT @key, @limiter, @limit, @burst, @period, number, previous, used, {changed}, charged, {fresh_expires}
FROM
  > {now} AS now, ({fresh_charged})::int4 AS charged
  > {fresh_state}
WHERE {checked} AND {covered}
ON CONFLICT (key) DO UPDATE SET (quota_limit, quota_burst, quota_period, number, previous, used, changed, charged, expires, banned_until, owing_until, allowed_until, reason) = (
  SELECT
    CASE WHEN stays THEN r.quota_limit ELSE @limit END,
    CASE WHEN stays THEN r.quota_burst ELSE @burst END,
    CASE WHEN stays THEN r.quota_period ELSE @period END,
    CASE WHEN stays THEN corrected ELSE number END,
    CASE WHEN stays THEN r.previous ELSE previous END,
    CASE WHEN stays THEN r.used ELSE used END,
    {changed},
    charged,
    CASE WHEN stays THEN r.expires ELSE {expires} END,
    CASE WHEN stays THEN r.banned_until - ahead END,
    CASE WHEN stays THEN r.owing_until - ahead END,
    CASE WHEN stays THEN r.allowed_until - ahead END,
    CASE WHEN stays THEN r.reason END
  FROM
    > {now} AS now
    > {ahead}
    > {is_in_force} OR NOT ({covered}) AS stays, {corrected} AS corrected
    {counted}
    > CASE WHEN stays THEN 0 ELSE greatest({charged}, 0)::int4 END AS charged
    > {state}
)
RETURNING {decided_at}, {brief_row}, charged::int8, (xmax = 0)::int4::int8
