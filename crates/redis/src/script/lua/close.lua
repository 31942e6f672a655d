  until true
  if not problem and admitted == 0 and old and string.find(old, ',', 1, true) then
    -- In the reply, a text with a comma cannot be separated from the next fields.
    problem = 'SLUICE the key holds no state'
  end
  if problem and keys == 1 then return redis.error_reply(problem) end
  if state then
    call('SET', key, state .. tag, 'PXAT', format('%d', (expires + 999) / 1000))
  elseif admitted > 0 then
    call('DEL', key)
  end
  -- One of several keys cannot be read: the caller makes a call for this key alone.
  local outcome, held = '-', ''
  if not problem then
    outcome, held = admitted == 1 and '1' or admitted, old and old .. tag or ''
  end
  reply[2 * index + 1], reply[2 * index + 2] = outcome, held
end
-- Seconds, microseconds, and for each key: admitted, old. One text, because the server sends a table more slowly.
return table.concat(reply, ',')
