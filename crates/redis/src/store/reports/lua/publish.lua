-- Replaces the report of a process on an hour. ARGV: the hour since the Unix epoch, the process, the report.
local call = redis.call
if call('HSET', KEYS[1], ARGV[1] .. ':' .. ARGV[2], ARGV[3]) == 1 then
  -- The first one of this hour: it deletes the reports that nobody reads any more, and those of wrong clocks.
  local hour = math.floor(call('TIME')[1] / 3600)
  for _, field in ipairs(call('HKEYS', KEYS[1])) do
    local of = tonumber(string.match(field, '^(%d+):'))
    if not of or of < hour - 1 or of > hour + 1 then
      call('HDEL', KEYS[1], field)
    end
  end
  call('PEXPIREAT', KEYS[1], string.format('%.0f', (hour + 3) * 3600000))
end
return 1
