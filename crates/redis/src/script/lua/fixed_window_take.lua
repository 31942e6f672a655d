for _ = 1, count do
  if used + cost > limit then break end
  used, admitted = used + cost, admitted + 1
end
if admitted > 0 then state, expires = format('-%d:%d', window, used), (window + 1) * period end
