if receipt == window and used > 0 then
  used, admitted = used - cost, 1
  if used > 0 then state, expires = format('-%d:%d', window, used), (window + 1) * period end
end
