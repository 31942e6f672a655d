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
      charged, reply[place + index] = '-', ''
    elseif admitted == 0 and charged ~= '-' then
      charged, ends[index] = 0, false
      -- A state under another quota than the call's, see own_quota.lua, or with another mark, see bucket_read.lua: the
      -- caller converts it.
      if listed > 0 and tag == '' and old and string.byte(old) ~= 33 and algorithm ~= '5' then
        is_open = is_open or (ARGV[own] or '0') ~= '0' or string.find(old, '@', 1, true)
          or string.find(old, '^-%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d')
      end
    end
  end
  if listed > 0 and charged ~= '-' then
    -- The first alternative without a key that lacks room, if there is one: it ends with the zero at `at`.
    local number, first, lacks = 1, 6 * size + 2, is_open
    for at = first, first + listed - 1 do
      local index = ARGV[at] + 0
      if index > 0 then
        lacks = lacks or ends[index] == false
      elseif lacks then
        number, first, lacks = number + 1, at + 1, is_open
      else
        local chosen = {}
        for member = first, at - 1 do chosen[ARGV[member] + 0] = states[ARGV[member] + 0] end
        charged, states = number, chosen
        break
      end
    end
  end
  if charged ~= '-' and charged > 0 then
    for index = 1, size do
      if states[index] then
        call('SET', KEYS[before + index], states[index], 'PXAT', format('%d', (ends[index] + 999) / 1000))
      end
    end
  end
  reply[place], place = charged, place + size + 1
end
-- Seconds, microseconds, and for each request: the number of the charged alternative (1 if there is one alone), old
-- texts.
return table.concat(reply, ',')
