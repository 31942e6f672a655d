    end
    until true
    if not problem and (admitted == 0 or algorithm == '0') and old and string.find(old, ',', 1, true) then
      -- In the reply, a text with a comma cannot be separated from the next fields.
      problem = 'SLUICE the key holds no state'
    end
    states[index], ends[index], reply[place + index] = state and state .. tag, expires, old and old .. tag or ''
    if problem then
      if get == call then return redis.error_reply(problem) end
      -- The caller makes a call for this request alone.
      all, reply[place + index] = '-', ''
    elseif admitted == 0 and all == 1 then
      all = 0
    end
  end
  if all == 1 then
    for index = 1, size do
      if states[index] then
        call('SET', KEYS[before + index], states[index], 'PXAT', format('%d', (ends[index] + 999) / 1000))
      end
    end
  end
  reply[place], place = all, place + size + 1
end
-- Seconds, microseconds, and for each request: whether all keys were charged, old texts.
return table.concat(reply, ',')
