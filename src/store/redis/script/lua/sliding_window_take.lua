-- What the previous window still weighs, rounded up: previous * left / period.
local left, weight = (window + 1) * period - now, 0
if left > period then left = period end
local product = previous * left
if product < 4503599627370496 then
  local over = product % period
  weight = (product - over) / period
  if over > 0 then weight = weight + 1 end
else
  -- From 2^53 on a double rounds (2^52 leaves a margin), so: long division, one bit of `previous` at a time.
  -- The remainder is below 2^50, and twice that and `left` below 2^52.
  local digits, over, bit = previous, 0, 2147483648
  while bit >= 1 do
    over, weight = over * 2, weight * 2
    if digits >= bit then digits, over = digits - bit, over + left end
    local whole = (over - over % period) / period
    over, weight, bit = over - whole * period, weight + whole, bit / 2
  end
  if over > 0 then weight = weight + 1 end
end
for _ = 1, count do
  if current + cost + weight > limit then break end
  current, admitted = current + cost, admitted + 1
end
if admitted > 0 then
  state, expires = format('-%d:%d:%d', window, previous, current), (window + 2) * period
end
