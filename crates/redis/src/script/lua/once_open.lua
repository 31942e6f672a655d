-- A request that may be a retry: a free retry charges the budget of free retries, and all other requests charge the
-- key.
--
-- KEYS: the state, the budget, the record of the request. A record is the number of free retries that are left,
-- '-<free>', and lives as long as these are free.
-- ARGV: as in several_open.lua, for the state and the budget: two keys.
local ARGV, format, call, count = ARGV, string.format, redis.call, 1
local reply = call('TIME')
local now = reply[1] * 1000000 + reply[2]
-- All keys are read before the first is written, so that a key of another type stops the script.
local record, olds, free = call('GET', KEYS[3]), { call('GET', KEYS[1]), false }, 0
if record then
  free = tonumber(string.match(record, '^-(%d+)$'))
  if not free or free >= 4294967296 then
    return redis.error_reply('SLUICE the key holds no record of a request')
  end
  -- A client that is banned has no free retries, see standing.lua.
  local banned = tonumber(olds[1] and string.match(olds[1], '^!(%d+):') or 0)
  if banned > now then free = 0 end
  if free > 0 then olds[2] = call('GET', KEYS[2]) end
end
-- The charged key: 1, the state, or 2, the budget, if the retry is free. 0 is a rejection.
local charged = 0
for index = free > 0 and 2 or 1, 1, -1 do
  local key, at, old = KEYS[index], 6 * index - 3, olds[index]
  local algorithm, own, texts = ARGV[at - 1], 10 + 4 * index, 20 + 2 * index
  local admitted, beyond, tag, size, problem, state, expires = 0, 0, ''
