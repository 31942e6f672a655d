if ends then
  for _ = 1, count do
    if used + cost > limit then break end
    used, admitted = used + cost, admitted + 1
  end
end
if admitted > 0 then state, expires = format('-%d:%d', ends / 1000000, used), ends end
