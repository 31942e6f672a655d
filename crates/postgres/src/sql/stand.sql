-- Bans a key, or changes its ban or its allowance by hand. A penalty leaves a key alone that is banned or allowed.
--
-- If there is nothing to lift, an expired row is left.
INSERT INTO {table} AS r (key, limiter, quota_limit, quota_burst, quota_period, number, previous, used, changed, charged, expires, banned_until, allowed_until, reason, bans, bans_until)
SELECT @key, @limiter, @limit, @burst, @period, 0, 0, 0, {changed}, 0, {standing_expires}, next_banned, next_allowed, @reason, next_bans, next_bans_until
FROM
  > {now} AS now
  > now::numeric + (@spans)[1] AS next_banned, now::numeric + @allowed AS next_allowed, NULL::numeric AS next_owing, CASE WHEN @remembered IS NOT NULL THEN 1 END AS next_bans, now::numeric + (@spans)[1] + @remembered AS next_bans_until
WHERE {checked}
ON CONFLICT (key) DO UPDATE SET (number, changed, charged, expires, banned_until, owing_until, allowed_until, reason, bans, bans_until) = (
  SELECT
    corrected,
    {changed},
    0,
    greatest(r.expires, {standing_expires}),
    next_banned, next_owing, next_allowed,
    CASE WHEN stays THEN r.reason ELSE @reason END,
    next_bans, next_bans_until
  FROM
    > {now} AS now
    > {ahead}
    > {corrected} AS corrected, r.banned_until - ahead AS banned, r.owing_until - ahead AS owing, r.allowed_until - ahead AS allowed
    > @by_hand = 0 AND coalesce(greatest(banned, allowed) > now, false) AS stays, CASE WHEN r.bans_until - ahead > now THEN r.bans ELSE 0 END AS bans_before
    > CASE WHEN @remembered IS NULL THEN (@spans)[1] ELSE (@spans)[least(bans_before + 1, cardinality(@spans))] END AS span
    > CASE WHEN stays THEN banned ELSE now::numeric + span END AS next_banned, CASE WHEN stays OR owing > now THEN owing END AS next_owing, CASE WHEN stays THEN allowed ELSE now::numeric + @allowed END AS next_allowed, CASE WHEN stays OR @remembered IS NULL THEN r.bans ELSE bans_before + 1 END AS next_bans, CASE WHEN stays OR @remembered IS NULL THEN r.bans_until - ahead ELSE now::numeric + span + @remembered END AS next_bans_until
)
RETURNING {decided_at}, {row}
