UPDATE {table} AS r SET (quota_limit, quota_burst, quota_period, number, previous, used, changed, charged, expires, banned_until, owing_until, allowed_until, reason) = (
  SELECT @limit, @burst, @period, @number, @previous, @used, {changed}, 0, {instant_of_swap}, @banned, @owing, @until, @reason
  FROM (SELECT @written AS now OFFSET 0) c
)
WHERE r.key = @key AND (SELECT {checked}) AND r.xmin::text = @version
RETURNING 1::int8
