-- Takes in the answer to a call.
--
-- ARGV: the number of the call; how long ago its answer came, and how long that took; 0 if there was none, 1 if it
-- reported nothing, 2 if it reported a budget, 3 if it was a rejection without a report; pause; left, reset and spacing of the budget; longest
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
  elseif kind == '1' and pause == 0 then
    passed = passed + 1
    if answered > cut then doublings, gap = 0, gap - ceil(gap / 128) end
    if ends <= came then free = 1 end
  elseif kind == '3' and answered > cut then
    if free == 1 then
      local measured = math.floor(max(0, came - counted) / max(1, passed))
      local longer = max(1, measured)
      if gap > 0 then longer = max(gap + ceil(gap / 2), min(measured, gap * 4)) end
      gap, counted, passed, doublings = min(longer, longest), came, 0, 0
    else
      doublings = min(doublings + 1, 5)
    end
    cut, free = number, 0
    paused = max(paused, came + min(1000000 * 2 ^ doublings, longest))
  end
  if pause > 0 then paused, free = max(paused, came + min(pause, longest)), 0 end
end
