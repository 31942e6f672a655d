  end
  until true
  if problem then return redis.error_reply(problem) end
  if admitted == 0 then all = 0 end
  states[index], ends[index], reply[3 + index] = state and state .. tag, expires, old and old .. tag
end
if all == 1 then
  for index = 1, #KEYS do
    if states[index] then
      call('SET', KEYS[index], states[index], 'PXAT', format('%d', (ends[index] + 999) / 1000))
    end
  end
end
-- Seconds, microseconds, whether all were admitted, old states. In the table that TIME made, and not as one text,
-- because states of keys that are only read were not checked.
reply[3] = all
return reply
