if receipt == window and current > 0 then
  current, admitted = current - cost, 1
elseif receipt + 1 == window and previous > 0 then
  previous, admitted = previous - cost, 1
end
if previous < 0 then previous = 0 end
if current > 0 then
  state, expires = format('-%d:%d:%d', window, previous, current), (window + 2) * period
elseif previous > 0 then
  state, expires = format('-%d:%d:0', window, previous), (window + 1) * period
end
