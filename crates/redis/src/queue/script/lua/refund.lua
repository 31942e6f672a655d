-- Makes a hole of a reservation, or lowers `due` if it is the last one.
--
-- ARGV: as for a reservation, and the receipt: when the reservation is paid for, in two numbers.
if old then
  local last, last_rest = ARGV[8] + 0, ARGV[9] + 0
  local first, first_rest = last - price, last_rest - price_rest
  if first_rest < 0 then first, first_rest = first - 1, first_rest + (parts or 1) end
  if first < now then first, first_rest = now, 0 end
  local is_sound = (first < last or first == last and first_rest < last_rest)
    and (last < due or last == due and last_rest <= rest)
  local list, is_in = {}, false
  for a, a_rest, b, b_rest in string.gmatch(holes or '', ' (%d+)%+(%d+):(%d+)%+(%d+)') do
    a, a_rest, b, b_rest = a + 0, a_rest + 0, b + 0, b_rest + 0
    if not parts then a_rest, b_rest = 0, 0 end
    if parts and a_rest >= parts then a_rest = parts - 1 end
    if parts and b_rest >= parts then b_rest = parts - 1 end
    if a < now then a, a_rest = now, 0 end
    if (a < b or a == b and a_rest < b_rest) and (b < due or b == due and b_rest <= rest) then
      if b == first and b_rest == first_rest then
        first, first_rest = a, a_rest
      elseif a == last and a_rest == last_rest then
        last, last_rest = b, b_rest
      elseif b < first or b == first and b_rest < first_rest then
        list[#list + 1] = {a, a_rest, b, b_rest}
      elseif a > last or a == last and a_rest > last_rest then
        if not is_in then list[#list + 1], is_in = {first, first_rest, last, last_rest}, true end
        list[#list + 1] = {a, a_rest, b, b_rest}
      else
        -- It was returned already.
        is_sound = false
      end
    end
  end
  if is_sound then
    if not is_in then list[#list + 1] = {first, first_rest, last, last_rest} end
    local final = list[#list]
    if final[3] == due and final[4] == rest then
      due, rest = final[1], final[2]
      list[#list] = nil
    end
    -- At most 64 are stored; the holes that pass first are dropped.
    if #list > 64 then table.remove(list, 1) end
    admitted = 1
    if due > now or due == now and rest > 0 then
      state, expires = format(form, due), due
      if rest > 0 then state, expires = format(form .. '+%d', due, rest), due + 1 end
      for _, hole in ipairs(list) do
        state = state .. format(' %d+%d:%d+%d', hole[1], hole[2], hole[3], hole[4])
      end
    end
  end
end
