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
WHERE r.key = @key AND {is_plain} AND {checked}
RETURNING {decided_at}, charged::int8, {returned_columns}
