-- Bans a key, see standing.lua. A ban that has begun keeps the end that its first response reported, and a key that an
-- operator allows is not banned.
--
-- If there is a second key, bans grow: it holds how often the key was banned, and until when that is remembered,
-- '<times>:<until>' in microseconds.
--
-- ARGV: the length of the first ban; if bans grow, also the factor, the length of the longest ban, and the time from the
-- end of a ban after which it is forgotten. All times are in microseconds.
local call, format, key = redis.call, string.format, KEYS[1]
local reply = call('TIME')
local old, left = call('GET', key), call('PTTL', key)
local repeated = KEYS[2] and call('GET', KEYS[2]) or ''
local times, remembered = string.match(repeated, '^(%d+):(%d+)$')
local now = reply[1] * 1000000 + reply[2]
local banned, owing, allowed, state = 0, 0, 0, old or ''
if old and string.byte(old) == 33 then
  banned, owing, allowed, state = string.match(old, '^!(%d+):(%d+):(%d+):[^!:]*!(.*)$')
  banned, owing, allowed = tonumber(banned), tonumber(owing), tonumber(allowed)
end
if not banned or banned >= 9007199254740992 or owing >= 9007199254740992 or allowed >= 9007199254740992
  or old and not string.find(old, '^[-!]') or repeated ~= '' and not times then
  return redis.error_reply('SLUICE the key holds no state')
end
if banned <= now and allowed <= now then
  local span = tonumber(ARGV[1])
  if KEYS[2] then
    times = times and tonumber(remembered) > now and math.min(tonumber(times), 94) or 0
    -- A product above 2^53 is not exact, and is cut: the longest ban is below that.
    for _ = 1, times do span = math.min(span * ARGV[2], tonumber(ARGV[3])) end
    remembered = now + span + ARGV[4]
    repeated = format('%d:%d', times + 1, remembered)
    call('SET', KEYS[2], repeated, 'PXAT', format('%d', (remembered + 999) / 1000))
  end
  banned = now + span
  if owing <= now then owing = 0 end
  old = format('!%d:%d:0:!', banned, owing) .. state
  -- The key lives until its debt is paid off and the ban is over.
  local expires = math.max((banned + 999) / 1000, now / 1000 + left + 1)
  call('SET', key, old, 'PXAT', format('%d', expires))
end
-- Seconds, microseconds, 0 for admitted, the present text of the key, and of the second one.
return reply[1] .. ',' .. reply[2] .. ',0,' .. old .. (KEYS[2] and ',' .. repeated or '')
