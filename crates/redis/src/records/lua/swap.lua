-- Replaces a record, if it still is what the caller has read.
--
-- ARGV: for how many milliseconds the new value is kept (0: for ever), whether there was a value, whether there is a new
-- one (1 or 0 each), and those of the two values that there are.
local call, key = redis.call, KEYS[1]
local reply = call('TIME')
local had, has = tonumber(ARGV[2]), ARGV[3] == '1'
local swapped = 0
if call('GET', key) == (had == 1 and ARGV[4]) then
  local new = ARGV[4 + had]
  if not has then
    call('DEL', key)
  elseif ARGV[1] == '0' then
    call('SET', key, new)
  else
    call('SET', key, new, 'PX', ARGV[1])
  end
  swapped = 1
end
reply[3] = swapped
return reply
