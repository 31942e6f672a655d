SELECT q.key, q.limiter, q.bit, q.quota_limit, q.quota_burst, q.quota_period,
    l.key IS NULL AS is_new, e.is_charged, v.is_covered OR NOT e.is_charged AS is_covered,
    CASE WHEN e.is_charged THEN v.is_covered AND f.fitting > 0 ELSE e.is_admitted END AS is_admitted,
    n.number, n.previous, n.used, {changed} AS changed, {expires} AS expires
  FROM asked q CROSS JOIN clock c
  LEFT JOIN locked l ON l.key = q.key
  CROSS JOIN LATERAL (
    SELECT coalesce(l.quota_limit, q.quota_limit) AS quota_limit, coalesce(l.quota_period, q.quota_period) AS quota_period,
      coalesce(l.number, 0) AS number, coalesce(l.previous, 0) AS previous, coalesce(l.used, 0) AS used,
      coalesce(l.changed, timestamptz 'epoch') AS changed, l.banned_until, l.owing_until, l.allowed_until, l.bans_until
    OFFSET 0
  ) r
  CROSS JOIN LATERAL ({ahead}) a
  CROSS JOIN LATERAL ({standing}) s
  -- Without a standing in force, a cost is charged if there is room. With one, the key passes if it is allowed. A key
  -- that is only read passes, unless it is banned.
  CROSS JOIN LATERAL (
    SELECT NOT s.is_in_force AND q.cost > 0 AS is_charged,
      coalesce(s.allowed_until > c.now, false) OR q.cost = 0 AND NOT coalesce(s.banned_until > c.now, false) AS is_admitted
    OFFSET 0
  ) e
  CROSS JOIN LATERAL (SELECT {covered} AS is_covered OFFSET 0) v
  CROSS JOIN LATERAL (SELECT {corrected} AS number OFFSET 0) p
  CROSS JOIN LATERAL ({counted}) o
  CROSS JOIN LATERAL (SELECT CASE WHEN q.cost > 0 THEN {charged} ELSE 0 END AS fitting OFFSET 0) f
  CROSS JOIN LATERAL (SELECT 1::int4 AS charged OFFSET 0) d
  CROSS JOIN LATERAL (SELECT {state} OFFSET 0) n
  WHERE q.kind = '{kind}'
