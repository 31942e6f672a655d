-- Replaces the text that the caller read, unless it has changed meanwhile.
--
-- ARGV: the millisecond at which the new text expires, the text that was read (empty: the key was empty), the new text
-- (empty: delete the key). With the first argument alone, the script only reads.
local call, key = redis.call, KEYS[1]
local reply = call('TIME')
local old, swapped = call('GET', key) or '', 0
if old == ARGV[2] then
  if ARGV[3] == '' then
    call('DEL', key)
  else
    call('SET', key, ARGV[3], 'PXAT', ARGV[1])
  end
  swapped = 1
end
-- Seconds, microseconds, whether the text was replaced, the old text.
return reply[1] .. ',' .. reply[2] .. ',' .. swapped .. ',' .. old
