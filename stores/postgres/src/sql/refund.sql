UPDATE {table} AS r SET (number, previous, used, changed, charged, expires, banned_until, owing_until, allowed_until) = (
  SELECT
    CASE WHEN k.stays THEN p.number ELSE n.number END,
    CASE WHEN k.stays THEN r.previous ELSE n.previous END,
    CASE WHEN k.stays THEN r.used ELSE n.used END,
    {changed},
    0,
    CASE WHEN k.stays THEN r.expires ELSE {expires} END,
    s.banned_until, s.owing_until, s.allowed_until
  FROM ({clock}) c
  CROSS JOIN LATERAL ({ahead}) a
  CROSS JOIN LATERAL ({standing}) s
  CROSS JOIN LATERAL (SELECT s.is_in_force OR NOT ({same_units}) AS stays OFFSET 0) k
  CROSS JOIN LATERAL (SELECT {corrected} AS number OFFSET 0) p
  CROSS JOIN LATERAL ({rolled}) t
  CROSS JOIN LATERAL (SELECT {refunded} OFFSET 0) n
)
WHERE r.key = @key
RETURNING coalesce(@now, {changed_nanos}), {row}
