  until true
  if problem and keys == 1 then return redis.error_reply(problem) end
  if admitted > 0 then
    call('SET', key, state .. tag, 'PXAT', format('%d', (expires + 999) / 1000))
  end
  if keys == 1 then
    -- Seconds, microseconds, admitted, old. In one text, because the server sends a table more slowly.
    return reply[1] .. ' ' .. reply[2] .. ' ' .. admitted .. ' ' .. (old and old .. tag or '')
  end
  if problem or admitted == 0 and old and string.find(old, ' ', 1, true) then
    -- The caller is to ask for this key alone: it cannot be read, or what it holds cannot be told from what follows.
    reply[index + 2] = '- '
  else
    reply[index + 2] = admitted .. ' ' .. (old and old .. tag or '')
  end
end
-- The same, with admitted and old for each key.
return table.concat(reply, ' ')
