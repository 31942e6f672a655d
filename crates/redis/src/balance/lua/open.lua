-- Begins a script on the balance of a key: drops lots that have expired, and adds up the others.
--
-- A key is a hash. Numbers are whole and below 2^53: a balance is below 10^15.
--   field   the millisecond at which a lot expires, 2^43 - 1 for never; value: the units of the lot
--   'owed'  the units that the key owes; only a key without lots has it
--
-- Blocks share these names:
--   now     the millisecond on the server's clock
--   lots    { millisecond, units }, in the order in which they are used
--   left    the units of all lots
--   owed    the units that the key owes
--   done    0: nothing; 1: the step of the block; 2: nothing, since the reference was used before; 3: nothing, since the
--           key has too many lots; 4: or too many units; 5: nothing, since the credit has expired
--   suffices  of a charge: the millisecond until which the lots suffice for it, or `NEVER`
--   taken, first, last, paid   of a charge: its units, the first lot, the last one, and what that has paid
--
-- ARGV: units; the others are the blocks' own
local ARGV, format, match, call, key = ARGV, string.format, string.match, redis.call, KEYS[1]
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local NEVER = 8796093022207
local units = ARGV[1] + 0
local lots, left, owed, done = {}, 0, 0, 0
local taken, first, last, paid, suffices = 0, 0, 0, 0, NEVER
local fields = call('HGETALL', key)
for index = 1, #fields, 2 do
  local field, number = fields[index], tonumber(match(fields[index + 1], '^%d+$'))
  local expires = tonumber(match(field, '^%d+$'))
  if not number or number >= 4503599627370496 or not (expires or field == 'owed') then
    return redis.error_reply('SLUICE the key holds no balance')
  end
  if not expires then
    owed = number
  elseif expires <= now then
    call('HDEL', key, field)
  else
    lots[#lots + 1] = { expires, number }
    left = left + number
  end
end
table.sort(lots, function(a, b) return a[1] < b[1] end)

-- Adds units to the lot that expires at this millisecond, after they have paid what the key owes.
local function add(expires, number)
  if number == 0 or expires <= now then return end
  local settled = math.min(number, owed)
  owed, number = owed - settled, number - settled
  if settled > 0 and owed == 0 then
    call('HDEL', key, 'owed')
  elseif settled > 0 then
    call('HSET', key, 'owed', format('%.0f', owed))
  end
  if number > 0 then
    local lot
    for _, other in ipairs(lots) do
      if other[1] == expires then lot = other end
    end
    if not lot then
      lot = { expires, 0 }
      lots[#lots + 1] = lot
    end
    lot[2], left = lot[2] + number, left + number
    call('HSET', key, format('%.0f', expires), format('%.0f', lot[2]))
  end
end

-- The key expires with its last lot. What it owes does not expire.
local function keep()
  local latest = owed > 0 and NEVER or 0
  for _, lot in ipairs(lots) do latest = math.max(latest, lot[1]) end
  if latest > 0 then call('PEXPIREAT', key, format('%.0f', latest)) end
end

-- Whether the reference of this credit or charge by hand was used before.
local is_repeated = KEYS[2] and call('GET', KEYS[2])

local function remember(millis)
  if KEYS[2] then call('SET', KEYS[2], '-', 'PX', format('%.0f', millis)) end
end
