end
if state and admitted > 0 then
  call('SET', key, state, 'PXAT', format('%d', (expires + 999) / 1000))
elseif admitted > 0 then
  call('DEL', key)
end
-- Seconds, microseconds, admitted, old: in one text, since a table takes the server longer to send.
return reply[1] .. ' ' .. reply[2] .. ' ' .. admitted .. ' ' .. (old or '')
