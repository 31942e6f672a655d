  until true
  if not problem and admitted == 0 and old and string.find(old, ',', 1, true) then
    -- What it holds cannot be told from what follows in the reply.
    problem = 'SLUICE the key holds no state'
  end
  if problem and keys == 1 then return redis.error_reply(problem) end
  if state then
    call('SET', key, state .. tag, 'PXAT', format('%d', (expires + 999) / 1000))
  elseif admitted > 0 then
    call('DEL', key)
  end
  -- One that cannot be read among several: the caller is to ask for this key alone.
  local outcome, held = '-', ''
  if not problem then
    outcome, held = admitted == 1 and '1' or admitted, old and old .. tag or ''
  end
  reply[2 * index + 1], reply[2 * index + 2] = outcome, held
end
-- Seconds, microseconds; for each key admitted, old. In one text, because the server sends a table more slowly.
return table.concat(reply, ',')
