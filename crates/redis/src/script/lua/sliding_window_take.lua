-- The weight of the previous window, rounded up.
local left, weight = (window + 1) * period - now, 0
if left > period then left = period end
local product = previous * left
if product < 4503599627370496 then
  local over = product % period
  weight = (product - over) / period
  if over > 0 then weight = weight + 1 end
else
  -- From 2^53 on, a double rounds (2^52 leaves a margin), so this quotient is an estimate: up to 1 too great or too
  -- small.
  weight = product / period
  weight = weight - weight % 1
  -- The remainder of the product is computed exactly. All four numbers are below 2^50. So each is cut at 25 bits, and
  -- the products of these halves are added up from the greatest to the least. Each sum is small.
  local a, b, c, d = previous % 33554432, left % 33554432, weight % 33554432, period % 33554432
  local over = (previous - a) * (left - b) / 1125899906842624 - (weight - c) * (period - d) / 1125899906842624
  over = over * 33554432 + ((previous - a) * b + a * (left - b) - (weight - c) * d - c * (period - d)) / 33554432
  over = over * 33554432 + (a * b - c * d)
  -- Rounds up to the next whole number, also from an estimate that was too small.
  weight = weight + (over + -over % period) / period
end
for _ = 1, count do
  if current + cost + weight > limit then break end
  current, admitted = current + cost, admitted + 1
end
if admitted > 0 then
  state, expires = format('-%d:%d:%d', window, previous, current), (window + 2) * period
end
