-- Reads the reports of all processes.
return redis.call('HGETALL', KEYS[1])
