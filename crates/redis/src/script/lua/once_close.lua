  end
  until true
  if problem then return redis.error_reply(problem) end
  olds[index] = old and old .. tag
  if admitted > 0 then
    call('SET', key, state .. tag, 'PXAT', format('%d', (expires + 999) / 1000))
    charged = index
    break
  end
end
if charged == 2 then call('SET', KEYS[3], format('-%d', free - 1), 'KEEPTTL') end
-- In the table that TIME made: seconds, microseconds, the number of the charged key, the old texts of the three keys,
-- and the remaining milliseconds of a free retry's record.
reply[3], reply[4], reply[5], reply[6] = charged, olds[1], olds[2], record
if charged == 2 then reply[7] = format('%d', call('PTTL', KEYS[3])) end
return reply
