-- A calendar window is the second at which it ends, and the units that were used in it: '-<end>:<used>'.
--
-- ARGV: cost, limit, and three seconds, at which consecutive windows begin: the caller knows the calendar, and the
-- server knows which of the two windows between them contains `now`. If `now` is in no such window, since the caller's
-- clock is wrong, `ends` stays nil, and no window begins. All seconds are below 2^53 / 10^6.
--
-- `is_moved`: the state is from the future, or of another calendar, and counts in the present window.
local cost, limit, used, is_moved, ends = ARGV[at] + 0, ARGV[at + 1] + 0, 0, false
local first, second, third = ARGV[at + 2] * 1000000, ARGV[at + 3] * 1000000, ARGV[at + 4] * 1000000
if first <= now and now < third then
  ends = now < second and second or third
end
if old then
  local stored, count_stored = string.match(old, '^-(%d+):(%d+)$')
  stored, count_stored = tonumber(stored), tonumber(count_stored)
  if not stored or stored > 9007199254 or count_stored >= 1000000000000000 then
    if tag == '' and string.find(old, '@', 1, true) then break end
    problem = 'SLUICE the key holds no state of a calendar window'
    break
  end
  stored = stored * 1000000
  if now < stored then
    used = count_stored
    if not ends then ends = stored end
    is_moved = ends ~= stored
  end
end
