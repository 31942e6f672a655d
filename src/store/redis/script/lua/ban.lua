-- Bans a key, see standing.lua. A ban that has begun keeps the end that its first response reported.
--
-- ARGV: the length of the ban in microseconds.
local call, format, key = redis.call, string.format, KEYS[1]
local reply = call('TIME')
local old, left = call('GET', key), call('PTTL', key)
local now = reply[1] * 1000000 + reply[2]
local banned, owing, state = 0, 0, old or ''
if old and string.byte(old) == 33 then
  banned, owing, state = string.match(old, '^!(%d+):(%d+)!(.*)$')
  banned, owing = tonumber(banned), tonumber(owing)
end
if not banned or banned >= 9007199254740992 or owing >= 9007199254740992 or old and not string.find(old, '^[-!]') then
  return redis.error_reply('SLUICE the key holds no state')
end
if banned <= now then
  banned = now + ARGV[1]
  if owing <= now then owing = 0 end
  old = format('!%d:%d!', banned, owing) .. state
  -- The key lives until its debt is paid off and the ban is over.
  local expires = math.max((banned + 999) / 1000, now / 1000 + left + 1)
  call('SET', key, old, 'PXAT', format('%d', expires))
end
-- Seconds, microseconds, 0 for admitted, the present text of the key.
return reply[1] .. ',' .. reply[2] .. ',0,' .. old
