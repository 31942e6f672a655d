-- Reads a key, and whether a reference of a charge by hand is known.
SELECT c.now, (k.name IS NOT NULL)::int4::int8, {row}, {changed_nanos}, r.xmin::text
FROM ({clock}) c
LEFT JOIN {table} r ON r.key = @key
LEFT JOIN {records} k ON k.name = @name AND k.expires > {changed}
WHERE {checked}
