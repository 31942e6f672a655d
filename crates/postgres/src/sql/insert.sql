INSERT INTO {table} AS r (key, limiter, quota_limit, quota_burst, quota_period, number, previous, used, changed, charged, expires, banned_until, owing_until, allowed_until, reason)
SELECT @key, @limiter, @limit, @burst, @period, @number, @previous, @used, {changed}, 0, {instant_of_insert}, @banned, @owing, @until, @reason
FROM (SELECT @written AS now OFFSET 0) c
WHERE {checked}
ON CONFLICT (key) DO NOTHING
RETURNING 1::int8
