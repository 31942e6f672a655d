until true
if problem then return redis.error_reply(problem) end
if state then
  call('SET', key, state, 'PXAT', format('%d', (expires + 999) / 1000))
elseif admitted > 0 then
  call('DEL', key)
end
-- The reply of a script on one key.
return reply[1] .. ' ' .. reply[2] .. ' ' .. admitted .. ' ' .. (text or '')
