if admitted > 0 then
  call('HSET', key, process .. ':' .. ARGV[2], format('-%d:%d:%d', own, now + lease, lease))
  call('PEXPIREAT', key, format('%d', (expires + 999) / 1000))
end
-- Seconds, microseconds, admitted, and the units that were in flight before.
return reply[1] .. ',' .. reply[2] .. ',' .. admitted .. ',' .. format('%d', total)
