-- Bans a key, see standing.lua. A ban that has begun keeps the end that its first response reported, and a key that an
-- operator allows is not banned.
--
-- ARGV: the length of the ban in microseconds.
local call, format, key = redis.call, string.format, KEYS[1]
local reply = call('TIME')
local old, left = call('GET', key), call('PTTL', key)
local now = reply[1] * 1000000 + reply[2]
local banned, owing, allowed, state = 0, 0, 0, old or ''
if old and string.byte(old) == 33 then
  banned, owing, allowed, state = string.match(old, '^!(%d+):(%d+):(%d+):[^!:]*!(.*)$')
  banned, owing, allowed = tonumber(banned), tonumber(owing), tonumber(allowed)
end
if not banned or banned >= 9007199254740992 or owing >= 9007199254740992 or allowed >= 9007199254740992
  or old and not string.find(old, '^[-!]') then
  return redis.error_reply('SLUICE the key holds no state')
end
if banned <= now and allowed <= now then
  banned = now + ARGV[1]
  if owing <= now then owing = 0 end
  old = format('!%d:%d:0:!', banned, owing) .. state
  -- The key lives until its debt is paid off and the ban is over.
  local expires = math.max((banned + 999) / 1000, now / 1000 + left + 1)
  call('SET', key, old, 'PXAT', format('%d', expires))
end
-- Seconds, microseconds, 0 for admitted, the present text of the key.
return reply[1] .. ',' .. reply[2] .. ',0,' .. old
