-- Reserves in the first hole that is wide enough, and otherwise after `due`. Parts of holes that have passed are lost.
local left = ''
for first, first_rest, last, last_rest in string.gmatch(holes or '', ' (%d+)%+(%d+):(%d+)%+(%d+)') do
  first, first_rest, last, last_rest = first + 0, first_rest + 0, last + 0, last_rest + 0
  if not parts then first_rest, last_rest = 0, 0 end
  if parts and first_rest >= parts then first_rest = parts - 1 end
  if parts and last_rest >= parts then last_rest = parts - 1 end
  if first < now then first, first_rest = now, 0 end
  if last < due or last == due and last_rest <= rest then
    if count == '1' and admitted == 0 then
      local next, next_rest = first + price, first_rest + price_rest
      if parts and next_rest >= parts then next, next_rest = next + 1, next_rest - parts end
      local fits = next < last or next == last and next_rest <= last_rest
      if fits and (next < full or next == full and next_rest <= full_rest) then
        first, first_rest, admitted = next, next_rest, 1
      end
    end
    if first < last or first == last and first_rest < last_rest then
      left = left .. format(' %d+%d:%d+%d', first, first_rest, last, last_rest)
    end
  end
end
if count == '1' and admitted == 0 then
  local next, next_rest = due + price, rest + price_rest
  if parts and next_rest >= parts then next, next_rest = next + 1, next_rest - parts end
  if next < full or next == full and next_rest <= full_rest then due, rest, admitted = next, next_rest, 1 end
end
if admitted > 0 then
  state, expires = format(form, due), due
  if rest > 0 then state, expires = format(form .. '+%d', due, rest), due + 1 end
  state = state .. left
end
