-- Replaces the text that the caller read, unless it has changed meanwhile.
--
-- KEYS: the key; for a charge by hand, the key of its reference as well: if that is there, nothing is replaced
-- ARGV: the millisecond at which the new text expires, the text that was read (empty: the key was empty), the new text
-- (empty: delete the key), for how many milliseconds the reference is known. With the first argument alone, the script
-- only reads.
local call, key, reference = redis.call, KEYS[1], KEYS[2]
local reply = call('TIME')
local old, swapped = call('GET', key) or '', 0
if reference and call('GET', reference) then
  swapped = 2
elseif old == ARGV[2] then
  if ARGV[3] == '' then
    call('DEL', key)
  else
    call('SET', key, ARGV[3], 'PXAT', ARGV[1])
  end
  if reference then call('SET', reference, '-', 'PX', ARGV[4]) end
  swapped = 1
end
-- Seconds, microseconds, whether the text was replaced (2: the reference is known), the old text.
if reference then return { reply[1], reply[2], swapped, old ~= '' and old } end
return reply[1] .. ',' .. reply[2] .. ',' .. swapped .. ',' .. old
