-- Reads several keys.
SELECT c.now, 0::int8, 1::int8, 1::int8 << (q.place - 1)::int4, {row}, {changed_nanos}
FROM ({clock}) c
CROSS JOIN unnest(@keys) WITH ORDINALITY AS q(key, place)
LEFT JOIN LATERAL (SELECT * FROM {table} s WHERE s.key = q.key OFFSET 0) r ON true
WHERE {checked}
