-- How a script of one algorithm begins: with the time.
--
-- A script is a few blocks of statements, put together when the crate is built. They are not functions, because
-- every run would create these again. Blocks share these names:
--   now        microseconds on the server's clock, below 2^52 (until the year 2112)
--   old        what the key holds, or false
--   algorithm  which one, where there are several: '0' only reads
--   at         where the numbers of the algorithm begin in ARGV
--   count      how many requests of one cost there are; 0 only reads
--   beyond     how much more than a full bucket a key may owe: 0 except for queues
--   tag        what follows the state in the text of a key: its quota, see own_quota.lua; else empty
--   admitted   how many of them pass
--   state      what to store from now on, if that changes, and ...
--   expires    ... the microsecond from which it owes nothing
--   problem    why the key cannot be read, if it cannot
--
-- A `*_read` block changes `old`, `tag` and `beyond` only together. It leaves by `break`, with `admitted` 0 and all of the
-- text in `old`, where the state is kept under another quota than the call's, which the caller sees by `old`; and where
-- there is a `problem`. So blocks are in a loop that runs once, which standing.lua begins, and a closing block ends.
-- Nothing is charged then.
--
-- All numbers are whole and below 2^53, so that doubles hold them exactly. They are formatted with '%d', which is
-- four times as fast as the conversion of redis.call.
--
-- ARGV: count, five numbers of the algorithm, beyond, and from 8 on the quota (zeros and what is absent at the end may be
-- left out)
local ARGV, format, call = ARGV, string.format, redis.call
local count, at, own, texts, algorithm = ARGV[1], 2, 8, 12
local reply = call('TIME')
local now = reply[1] * 1000000 + reply[2]
