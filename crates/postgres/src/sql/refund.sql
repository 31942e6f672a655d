UPDATE {table} AS r SET (number, previous, used, changed, charged, expires, banned_until, owing_until, allowed_until) = (
  SELECT
    CASE WHEN stays THEN corrected ELSE number END,
    CASE WHEN stays THEN r.previous ELSE previous END,
    CASE WHEN stays THEN r.used ELSE used END,
    {changed},
    0,
    CASE WHEN stays THEN r.expires ELSE {expires} END,
    r.banned_until - ahead, r.owing_until - ahead, r.allowed_until - ahead
  FROM
    > {now} AS now
    > {ahead}
    > {is_in_force} OR NOT ({same_units}) AS stays, {corrected} AS corrected
    {rolled}
    > {refunded}
)
WHERE r.key = @key AND (SELECT {checked})
RETURNING {decided_at}, {row}
