-- Records that a charged request is over. One that has a record keeps it.
--
-- ARGV: how many retries are free, and for how many milliseconds.
redis.call('SET', KEYS[1], '-' .. ARGV[1], 'PX', ARGV[2], 'NX')
