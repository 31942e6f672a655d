SELECT c.now, encode(r.value, 'hex')
FROM ({clock}) c LEFT JOIN {records} r ON r.name = @name AND r.expires > {changed}
WHERE {checked}
