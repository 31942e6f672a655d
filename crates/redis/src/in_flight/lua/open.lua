-- Begins a script that takes or renews units of a process: drops leases that have ended, and adds up the rest.
--
-- A key is a hash with a field for each process that has units in flight. Numbers are whole and below 2^53: a limit is
-- below 10^15, and a field has up to twice that, since a renewal adds to the units taken.
--   field   '<process>:<number>': a process begins a field of a higher number when it renews
--   value   '-<units>:<end>:<lease>': when the lease ends, and how long it is, in microseconds of the server's clock
--
-- Blocks share these names:
--   now       microseconds on the server's clock, below 2^52 (until the year 2112)
--   total     the units in flight, of all processes
--   own       the part of `total` in the process's field of this number
--   older     the process's fields of lower numbers
--   expires   when the last lease ends, if another begins now
--
-- ARGV: process, number, units, lease; and to take units, the limit
local ARGV, format, match, call, key = ARGV, string.format, string.match, redis.call, KEYS[1]
local process, number, units, lease = ARGV[1], ARGV[2] + 0, ARGV[3] + 0, ARGV[4] + 0
local reply = call('TIME')
local now = reply[1] * 1000000 + reply[2]
local fields = call('HGETALL', key)
local total, own, older, expires = 0, 0, {}, now + lease
for index = 1, #fields, 2 do
  local field = fields[index]
  local holder, its_number = match(field, '^(%d+):(%d+)$')
  local held, due, span = match(fields[index + 1], '^-(%d+):(%d+):(%d+)$')
  held, due, span = tonumber(held), tonumber(due), tonumber(span)
  if not holder or not held or held >= 2251799813685248 or due >= 9007199254740992 or span >= 4503599627370496 then
    return redis.error_reply('SLUICE the key holds no units in flight')
  end
  if due > now + span then
    -- Too far in the future: the clock was set back. The correction is stored, because the lease would be too long the
    -- next time, too, until the clock has caught up.
    due = now + span
    call('HSET', key, field, format('-%d:%d:%d', held, due, span))
  end
  if due <= now then
    call('HDEL', key, field)
  else
    total = total + held
    if due > expires then expires = due end
    if holder == process then
      its_number = its_number + 0
      if its_number == number then own = held elseif its_number < number then older[#older + 1] = field end
    end
  end
end
-- Above any limit, and still exact in a double: processes that were cut off may have more units in flight.
if total > 9007199254740991 then total = 9007199254740991 end
local admitted = 0
