-- Reserves the next departure, or confirms one whose time has come.
--
-- ARGV: interval, ahead, longest; the number and the time of the slot, or 0 and 0
local interval, ahead, longest, slot = ARGV[1] + 0, ARGV[2] + 0, ARGV[3] + 0, ARGV[4] + 0
local units = max(0, left - (number - by))
local is_covered = free == 1 or slot == number and probe > now or now < ends and slot <= by + left
if paused > now then
  at = paused
elseif slot > 0 and is_covered then
  departs, which, at = 1, slot, ARGV[5] + 0
elseif probe > now then
  at = min(probe, max(now, last) + 20000)
else
  local paid = max(0, tat - ahead)
  local awaited = 0
  departs, at = 1, max(paid, now - 50000)
  if paid > now then
    -- not reserved: a caller that gives up would take the departure with it
    departs, at = 0, paid
  elseif free == 1 then
    if gap > 0 then at = max(at, last + min(gap, longest)) end
    if gap == 0 and window < widest then
      local opens = last + 1000000
      if room > 0 then
        room = room - 1
      elseif opens > now then
        departs, at = 0, min(opens, max(now, last) + 20000)
      else
        window = min(max(window * 2, 2), widest)
        room = window - 1
      end
    end
  else
    if gap > 0 then at = max(at, last + min(gap, longest)) end
    local last_known = ends
    if units == 0 then last_known = min(ends, last + longest) end
    if last_known <= now then
      at = max(at, now)
      awaited = at + 1000000
    elseif units == 0 then
      departs, at = 0, last_known
    else
      local spread = ceil(max(0, ends - last) / (units + 1))
      if spacing > 0 then spread = min(spread, max(spacing, ceil(max(0, since - last) / (units + 1)))) end
      at = max(at, last + min(spread, longest))
      if at >= last_known then departs, at = 0, last_known end
    end
  end
  if departs == 1 then
    if at > max(paused, last + gap) + 1000000 then counted, passed = at, 0 end
    number, last, probe, is_changed = number + 1, at, awaited, true
    which = number
    if interval > 0 then tat = max(tat, at) + interval end
  end
end
