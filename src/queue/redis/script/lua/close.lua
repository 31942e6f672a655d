if state then
  call('SET', key, state, 'PXAT', format('%d', (expires + 999) / 1000))
elseif admitted > 0 then
  call('DEL', key)
end
-- As of one key.
return reply[1] .. ' ' .. reply[2] .. ' ' .. admitted .. ' ' .. (text or '')
