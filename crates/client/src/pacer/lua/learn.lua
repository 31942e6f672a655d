-- Takes in the answer to a call.
--
-- ARGV: the number of the call; how long ago its answer came, and how long that took; 0 if there was none, 1 if the
-- partner did not reject the call, 2 if it did; wait; 1 if it reported a budget; left, reset and spacing; longest
local answered, came, took, answer = ARGV[1] + 0, now - ARGV[2], ARGV[3] + 0, ARGV[4]
local wait, longest = ARGV[5] + 0, ARGV[10] + 0
local function pause(time)
  if time > 0 then paused = max(paused, came + min(time, longest)) end
end
if answered <= number then
  is_changed = true
  if answered == number then probe = 0 end
  local was_free, was_known, is_used_up = free == 1, came < ends, false
  if ARGV[6] == '1' then
    local remaining, reset = ARGV[7] + 0, ARGV[8] + 0
    is_used_up = remaining == 0
    if answered >= by then
      if is_used_up then reset = min(reset, longest) end
      local latest = came + reset
      local earliest = max(0, latest - took - 1010000)
      local expected = max(0, left - (answered - by))
      if came < ends and earliest < ends and since < latest and remaining <= expected then
        ends, since = min(ends, latest), max(since, earliest)
      else
        ends, since = latest, earliest
      end
      by, left, spacing, free = answered, remaining, ARGV[9] + 0, 0
    end
  end
  if answer == '0' then
    room = min(room + 1, window)
  elseif answer == '1' then
    passed = passed + 1
    if answered > cut then
      doublings = 0
      if ends <= came then free = 1 end
      if gap > 0 then
        gap = gap - ceil(gap / 128)
        window = gap == 0 and widest or 0
        room = window
      elseif free == 1 and window == 0 then
        window, room, counted, passed = 2, 2, came, 0
      elseif free == 1 then
        local wider = (window - room) * 8 >= window and 1 or 0
        window = min(window + wider, widest)
        room = min(room + 1 + wider, window)
      end
    end
  elseif answered > cut then
    if was_free or was_known and not is_used_up then
      local measured = math.floor(max(0, came - counted) / max(1, passed))
      local longer = min(max(1, measured), 1000000)
      if gap > 0 then longer = max(gap + ceil(gap / 2), min(measured, gap * 4)) end
      gap, counted, passed, doublings = min(longer, longest), came, 0, 0
    else
      doublings = min(doublings + 1, 5)
    end
    local guess = 0
    if wait == 0 and not is_used_up then
      guess = 1000000 * 2 ^ doublings
    elseif doublings > 1 then
      guess = 1000000 * 2 ^ (doublings - 1)
    end
    if not is_used_up then left, ends = 0, 0 end
    pause(max(wait, guess))
    cut, free, window, room = number, 0, 0, 0
  else
    pause(wait)
  end
end
