-- Records that a charged request is over. A present record stays.
--
-- ARGV: the number of free retries, and for how many milliseconds they are free.
redis.call('SET', KEYS[1], '-' .. ARGV[1], 'PX', ARGV[2], 'NX')
