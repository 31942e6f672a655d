-- Takes in the answer to a call.
--
-- ARGV: the number of the call; how long ago its answer came, and how long that took; 0 if there was none, 1 if it
-- reported nothing, 2 if it reported a budget; pause; left, reset and spacing of the budget; longest
local answered, came, took, kind = ARGV[1] + 0, now - ARGV[2], ARGV[3] + 0, ARGV[4]
local pause, longest = ARGV[5] + 0, ARGV[9] + 0
if answered <= number then
  is_changed = true
  if answered == number then probe = 0 end
  if kind == '2' and answered >= by then
    local remaining, reset = ARGV[6] + 0, ARGV[7] + 0
    if remaining == 0 then reset = min(reset, longest) end
    local latest = came + reset
    local earliest = max(0, latest - took - 1010000)
    local expected = max(0, left - (answered - by))
    if came < ends and earliest < ends and since < latest and remaining <= expected then
      ends, since = min(ends, latest), max(since, earliest)
    else
      ends, since = latest, earliest
    end
    by, left, spacing, free = answered, remaining, ARGV[8] + 0, 0
  elseif kind == '1' and pause == 0 and ends <= came then
    free = 1
  end
  if pause > 0 then paused, free = max(paused, came + min(pause, longest)), 0 end
end
