-- How a script on one key begins: with the time and what is stored.
--
-- A script is a few blocks of statements, put together when the crate is built. They are not functions, because
-- every run would create these again. Blocks share these names:
--   now        microseconds on the server's clock, below 2^52 (until the year 2112)
--   old        what the key holds, or false
--   at         where the numbers of the algorithm begin in ARGV
--   count      how many requests of one cost there are; 0 only reads
--   beyond     how much more than a full bucket a key may owe: 0 except for queues
--   admitted   how many of them pass
--   state      what to store from now on, if that changes, and ...
--   expires    ... the microsecond from which it owes nothing
--
-- All numbers are whole and below 2^53, so that doubles hold them exactly. They are formatted with '%d', which is
-- four times as fast as the conversion of redis.call.
--
-- ARGV: count, five numbers of the algorithm (trailing zeros may be left out), beyond
local ARGV, format, call, key = ARGV, string.format, redis.call, KEYS[1]
local count, at, beyond = ARGV[1], 2, ARGV[7] or 0
local reply = call('TIME')
local old = call('GET', key)
local now = reply[1] * 1000000 + reply[2]
local admitted, state, expires = 0
