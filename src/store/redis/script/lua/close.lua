if admitted > 0 then
  call('SET', key, state, 'PXAT', format('%d', (expires + 999) / 1000))
end
-- Seconds, microseconds, admitted, old. In the table that TIME made.
reply[3], reply[4] = admitted, old
return reply
