-- Releases units of a process, if its field of this number has at least these. Otherwise the server has lost them, and
-- the units in the field may belong to later requests: the field stays unchanged.
--
-- ARGV: process, number, units
local call, key, field = redis.call, KEYS[1], ARGV[1] .. ':' .. ARGV[2]
local held, lease = string.match(call('HGET', key, field) or '', '^-(%d+)(:%d+:%d+)$')
local left, released = (held or -1) - ARGV[3], 0
if left > 0 then
  call('HSET', key, field, string.format('-%d', left) .. lease)
  released = 1
elseif left == 0 then
  call('HDEL', key, field)
  released = 1
end
local time = call('TIME')
return time[1] .. ',' .. time[2] .. ',' .. released .. ','
