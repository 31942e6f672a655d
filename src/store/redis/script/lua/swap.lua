-- Puts a text in the place of the one that was read, unless that has changed meanwhile.
--
-- ARGV: at which millisecond the new text expires, the text that was read (empty: the key held nothing), the new text. With
-- the first alone, it only reads.
local call, key = redis.call, KEYS[1]
local reply = call('TIME')
local old, swapped = call('GET', key) or '', 0
if old == ARGV[2] then
  call('SET', key, ARGV[3], 'PXAT', ARGV[1])
  swapped = 1
end
-- Seconds, microseconds, whether it did, what the key held.
return reply[1] .. ',' .. reply[2] .. ',' .. swapped .. ',' .. old
