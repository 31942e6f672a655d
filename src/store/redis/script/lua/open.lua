-- How a script on one key begins: with the time and what is stored.
--
-- A script is a few blocks of statements, put together when the crate is built. They are not functions, because
-- every run would create these again. Blocks share these names:
--   now        microseconds on the server's clock, below 2^52 (until the year 2112)
--   old        what the key holds, or false
--   at         where the numbers of the algorithm begin in ARGV
--   count      how many requests of one cost there are; 0 only reads
--   beyond     how much more than a full bucket a key may owe: 0 except for queues
--   tag        what follows the state in the text of a key: its quota, see own_quota.lua; else empty
--   admitted   how many of them pass
--   state      what to store from now on, if that changes, and ...
--   expires    ... the microsecond from which it owes nothing
--
-- A `*_read` block changes `old`, `tag` and `beyond` only together. Where the state is kept under another quota than the
-- call's, it leaves by `break`, with `admitted` 0 and all of the text in `old`: so blocks are in a loop that runs once,
-- which own_quota.lua begins, and a closing block ends. Nothing is charged then, and the caller sees it by `old`.
--
-- All numbers are whole and below 2^53, so that doubles hold them exactly. They are formatted with '%d', which is
-- four times as fast as the conversion of redis.call.
--
-- ARGV: count, five numbers of the algorithm, beyond, and from 8 on the quota (zeros and what is absent at the end may be
-- left out)
local ARGV, format, call, key = ARGV, string.format, redis.call, KEYS[1]
local count, at, beyond, own, texts = ARGV[1], 2, ARGV[7] or 0, 8, 12
local reply = call('TIME')
local old = call('GET', key)
local now = reply[1] * 1000000 + reply[2]
local admitted, tag, state, expires = 0, ''
