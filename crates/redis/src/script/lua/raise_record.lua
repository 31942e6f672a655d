-- Returns a free retry to the record of its request, if that is still there. Other text stays as it is.
--
-- ARGV: the most retries that are free.
local record = redis.call('GET', KEYS[1])
local free = record and tonumber(string.match(record, '^-(%d+)$'))
if free and free < ARGV[1] + 0 then
  redis.call('SET', KEYS[1], string.format('-%d', free + 1), 'KEEPTTL')
end
