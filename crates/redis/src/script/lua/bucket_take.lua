if count == '1' and not parts then
  -- By far the most frequent case, and a little faster without the loop.
  local next = due + price
  if next <= full then due, admitted = next, 1 end
else
  for _ = 1, count do
    local next, next_rest = due + price, rest
    if parts then
      next_rest = rest + price_rest
      if next_rest >= parts then next, next_rest = next + 1, next_rest - parts end
    end
    if next > full or next == full and next_rest > full_rest then break end
    due, rest, admitted = next, next_rest, admitted + 1
  end
end
if admitted > 0 then
  if rest == 0 then
    state, expires = format(form, due), due
  else
    state, expires = format(form .. '+%d', due, rest), due + 1
  end
end
