INSERT INTO {records} AS r (name, value, expires)
SELECT @name, decode(@new, 'hex'), {record_expires} FROM ({clock}) c WHERE {checked}
-- One whose lifetime is over is no record.
ON CONFLICT (name) DO UPDATE SET value = excluded.value, expires = excluded.expires
WHERE r.expires <= {record_now}
RETURNING 1::int8
