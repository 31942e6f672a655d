UPDATE {records} AS r SET (value, expires) = (
  SELECT decode(@new, 'hex'), {record_expires} FROM ({clock}) c
)
WHERE r.name = @name AND (SELECT {checked}) AND r.value = decode(@old, 'hex') AND r.expires > {record_now}
RETURNING 1::int8
