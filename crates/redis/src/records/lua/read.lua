-- Reads a record.
local reply = redis.call('TIME')
reply[3] = 0
reply[4] = redis.call('GET', KEYS[1])
return reply
