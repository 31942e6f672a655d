SELECT q.key, q.limiter, q.bit, q.quota_limit, q.quota_burst, q.quota_period,
    l.key IS NULL AS is_new, is_charged, is_covered OR NOT is_charged AS is_covered,
    CASE WHEN is_charged THEN is_covered AND fitting > 0 ELSE may_pass END AS is_admitted,
    x.number, x.previous, x.used, x.changed_at AS changed, x.expires_at AS expires
  FROM asked q CROSS JOIN clock c
  LEFT JOIN locked l ON l.key = q.key
  CROSS JOIN LATERAL (
    SELECT coalesce(l.quota_limit, q.quota_limit) AS quota_limit, coalesce(l.quota_period, q.quota_period) AS quota_period,
      coalesce(l.number, 0) AS number, coalesce(l.previous, 0) AS previous, coalesce(l.used, 0) AS used,
      coalesce(l.changed, timestamptz 'epoch') AS changed, l.banned_until, l.owing_until, l.allowed_until, l.bans_until
    OFFSET 0
  ) r
  -- Without a standing in force, a cost is charged if there is room. With one, the key passes if it is allowed. A key
  -- that is only read passes, unless it is banned.
  CROSS JOIN LATERAL
    > c.now AS now
    > {ahead}
    > NOT {is_in_force} AND q.cost > 0 AS is_charged, coalesce(r.allowed_until - ahead > now, false) OR q.cost = 0 AND NOT coalesce(r.banned_until - ahead > now, false) AS may_pass, {covered} AS is_covered, {corrected} AS corrected
    {counted}
    > CASE WHEN q.cost > 0 THEN {charged} ELSE 0 END AS fitting, 1::int4 AS charged
    > {state}
    > {changed} AS changed_at, {expires} AS expires_at
  WHERE q.kind = '{kind}'
