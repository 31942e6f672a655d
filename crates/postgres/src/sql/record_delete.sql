DELETE FROM {records} AS r
WHERE r.name = @name AND (SELECT {checked}) AND r.value = decode(@old, 'hex') AND r.expires > {record_now}
RETURNING 1::int8
