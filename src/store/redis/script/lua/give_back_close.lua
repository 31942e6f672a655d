end
if state and admitted > 0 then
  call('SET', key, state, 'PXAT', format('%d', (expires + 999) / 1000))
elseif admitted > 0 then
  call('DEL', key)
end
reply[3], reply[4] = admitted, old
return reply
