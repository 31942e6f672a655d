end
until true
if problem then return redis.error_reply(problem) end
if state and admitted > 0 then
  call('SET', key, state .. tag, 'PXAT', format('%d', (expires + 999) / 1000))
elseif admitted > 0 then
  call('DEL', key)
end
-- Seconds, microseconds, admitted, old. One text, because the server sends a table more slowly.
return reply[1] .. ',' .. reply[2] .. ',' .. admitted .. ',' .. (old and old .. tag or '')
