-- Bans a key, or changes its ban or its allowance by hand. A penalty leaves a key alone that is banned or allowed.
--
-- If there is nothing to lift, an expired row is left.
INSERT INTO {table} AS r (key, limiter, quota_limit, quota_burst, quota_period, number, previous, used, changed, charged, expires, banned_until, allowed_until, reason, bans, bans_until)
SELECT @key, @limiter, @limit, @burst, @period, 0, 0, 0, {changed}, 0, {standing_expires}, u.banned_until, u.allowed_until, @reason, u.bans, u.bans_until
FROM ({clock}) c
CROSS JOIN LATERAL (
  SELECT c.now::numeric + (@spans)[1] AS banned_until, c.now::numeric + @allowed AS allowed_until, NULL::numeric AS owing_until,
    CASE WHEN @remembered IS NOT NULL THEN 1 END AS bans, c.now::numeric + (@spans)[1] + @remembered AS bans_until
  OFFSET 0
) u
ON CONFLICT (key) DO UPDATE SET (number, changed, charged, expires, banned_until, owing_until, allowed_until, reason, bans, bans_until) = (
  SELECT
    p.number,
    {changed},
    0,
    greatest(r.expires, {standing_expires}),
    u.banned_until, u.owing_until, u.allowed_until,
    CASE WHEN k.stays THEN r.reason ELSE @reason END,
    u.bans, u.bans_until
  FROM ({clock}) c
  CROSS JOIN LATERAL ({ahead}) a
  CROSS JOIN LATERAL ({standing}) s
  CROSS JOIN LATERAL (SELECT {corrected} AS number OFFSET 0) p
  CROSS JOIN LATERAL (
    SELECT @by_hand = 0 AND coalesce(greatest(s.banned_until, s.allowed_until) > c.now, false) AS stays,
      CASE WHEN r.bans_until - a.ahead > c.now THEN r.bans ELSE 0 END AS before
    OFFSET 0
  ) k
  CROSS JOIN LATERAL (
    SELECT
      CASE WHEN k.stays THEN s.banned_until ELSE c.now::numeric + b.span END AS banned_until,
      CASE WHEN k.stays OR s.owing_until > c.now THEN s.owing_until END AS owing_until,
      CASE WHEN k.stays THEN s.allowed_until ELSE c.now::numeric + @allowed END AS allowed_until,
      CASE WHEN k.stays OR @remembered IS NULL THEN r.bans ELSE k.before + 1 END AS bans,
      CASE WHEN k.stays OR @remembered IS NULL THEN r.bans_until - a.ahead ELSE c.now::numeric + b.span + @remembered END AS bans_until
    FROM (
      SELECT CASE WHEN @remembered IS NULL THEN (@spans)[1]
        ELSE (@spans)[least(k.before + 1, cardinality(@spans))] END AS span
      OFFSET 0
    ) b
    OFFSET 0
  ) u
)
RETURNING coalesce(@now, {changed_nanos}), {row}
