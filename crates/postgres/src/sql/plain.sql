-- Decides on one request whose row is as most are: under the quota of the question, without a ban, a debt or an allowance,
-- and from no clock that was ahead. It computes half of what decide.sql does, and nothing for a new row.
UPDATE {table} AS r SET ({columns}, changed, charged, expires) = (
  SELECT {columns}, {changed}, charged, {expires}
  FROM
    > {plain_now} AS now
    {plainly_counted}
    > ({fits})::int4 AS charged
    > {plain_state}
)
WHERE r.key = @key AND r.quota_limit = @limit AND r.quota_burst = @burst AND r.quota_period = @period
  AND coalesce(r.banned_until, r.owing_until, r.allowed_until) IS NULL AND NOT ({is_ahead}) AND {checked}
RETURNING {decided_at}, charged::int8, {returned_columns}
