-- Charges two keys, or neither, whose rows are as most are (see plain.sql). The keys are in their order.
--
-- It locks the rows in the order of the keys, as joint.sql does, whose comment says why that matters: the second row is
-- looked up beside the first one (`LATERAL`, and not pulled up, since it locks). The clock is read when both are locked. From
-- then on nothing but this statement changes them, so each update finds its row: the sum is 2, or 0 without a charge.
WITH found AS MATERIALIZED (
  SELECT *
  FROM
    > {pair_now} AS now, {a_found}, {b_found} FROM (SELECT r.* FROM {table} AS r WHERE r.key = @key AND {a_is_plain} AND {checked} FOR NO KEY UPDATE) a CROSS JOIN LATERAL (SELECT r.* FROM {table} AS r WHERE r.key = @key_2 AND r.key > a.key AND {b_is_plain} FOR NO KEY UPDATE) b
{counted}
    > {a_fits} AND {b_fits} AS fits, {a_state}, {b_state}
),
first AS (
  UPDATE {table} AS r SET {a_sets}, changed = {changed}, charged = 1, expires = {a_expires}
  FROM found WHERE fits AND r.key = @key RETURNING 1 AS one
),
second AS (
  UPDATE {table} AS r SET {b_sets}, changed = {changed}, charged = 1, expires = {b_expires}
  FROM found WHERE fits AND r.key = @key_2 RETURNING 1 AS one
)
SELECT now, CASE WHEN fits THEN first.one + second.one ELSE 0 END::int8, {a_returned}, {b_returned}
FROM found LEFT JOIN first ON true LEFT JOIN second ON true
