if is_moved and count ~= '0' then
  -- Stored even if nothing is charged: otherwise, the state would count in the next window, too, or expire before the
  -- present one ends.
  call('SET', key, format('-%d:%d', ends / 1000000, used) .. tag, 'PXAT', format('%d', ends / 1000))
end
if ends then
  for _ = 1, count do
    if used + cost > limit then break end
    used, admitted = used + cost, admitted + 1
  end
end
if admitted > 0 then state, expires = format('-%d:%d', ends / 1000000, used), ends end
