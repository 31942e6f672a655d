-- The debt that is left of a charge is the time from now until `receipt`, when it is paid off: at most the price.
local owed, owed_rest = receipt - now, receipt_rest
if owed > 0 or owed == 0 and owed_rest > 0 then
  if owed > price or owed == price and owed_rest > price_rest then
    owed, owed_rest = price, price_rest
  end
  due, rest, admitted = due - owed, rest - owed_rest, 1
  if rest < 0 then due, rest = due - 1, rest + (parts or 1) end
  if due > now or due == now and rest > 0 then
    state, expires = format(form, due), due
    if rest > 0 then state, expires = format(form .. '+%d', due, rest), due + 1 end
  end
end
