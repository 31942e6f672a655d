SELECT c.now, {row}, {changed_nanos}, r.xmin::text
FROM ({clock}) c LEFT JOIN {table} r ON r.key = @key
WHERE {checked}
