-- Claims what one process of several does. ARGV: the milliseconds until it may be claimed again.
return redis.call('SET', KEYS[1], '', 'NX', 'PX', ARGV[1]) and 1 or 0
