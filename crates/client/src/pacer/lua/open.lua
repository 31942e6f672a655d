-- How the scripts of a pace begin: with the time, and what is known of the partner. The names and the rules are those of
-- pace.rs, which documents them. All numbers are microseconds or counts below 2^53, so that doubles hold them exactly.
local ARGV, format, call, key = ARGV, string.format, redis.call, KEYS[1]
local max, min, ceil = math.max, math.min, math.ceil
local widest = 1024
local reply = call('TIME')
local now = reply[1] * 1000000 + reply[2]
local number_of = ' (%d+)'
local known = {string.match(call('GET', key) or '', '^%-(%d+)' .. string.rep(number_of, 17) .. '$')}
if not known[1] then known = {0, now, 0, 0, now, 0, 0, 0, 0, 0, 0, 0, now, now, 0, 0, 0, 0} end
for i = 1, 18 do known[i] = known[i] + 0 end
local paused, number, last, tat, by, left, ends, since, spacing, probe, free, gap, cut, counted, passed, doublings,
  window, room = unpack(known)
-- What the script replies: 1 if the call departs, its number, and when; or 0, 0, and when to ask again.
local departs, which, at = 0, 0, 0
local is_changed = false
