-- Begins a script of one algorithm: reads the time.
--
-- A script is a few blocks of statements, put together when the crate is built. They are not functions, because
-- every run would create these again. Blocks share these names:
--   now        microseconds on the server's clock, below 2^52 (until the year 2112)
--   old        the text of the key, or false
--   algorithm  the number of the algorithm, if there are several: '0' only reads
--   size       the number of keys of a request, if there are several
--   at         the index in ARGV at which the numbers of the algorithm begin
--   count      the number of requests, which have one cost; 0 only reads
--   beyond     the debt beyond a full bucket that a key may have: 0 except for queues
--   tag        the text behind the state of a key: its quota, see own_quota.lua, or empty
--   admitted   the number of requests that pass
--   state      the new state to store, if it changes, and ...
--   expires    ... the microsecond from which it owes nothing
--   problem    the error, if the key cannot be read
--
-- A `*_read` block changes `old`, `tag` and `beyond` only together. It leaves by `break`, with `admitted` 0 and the
-- whole text in `old`, if the state is kept under another quota than the call's (the caller sees that in `old`), or if
-- there is a `problem`. Then nothing is charged. For the `break`, the blocks are in a loop that runs once: standing.lua
-- begins it, and a closing block ends it.
--
-- All numbers are whole and below 2^53, so that doubles hold them exactly. They are formatted with '%d', which is
-- four times as fast as the conversion of redis.call.
--
-- ARGV: count, five numbers of the algorithm, beyond, and from 8 on the quota. Zeros and missing numbers at the end are
-- optional.
local ARGV, format, call = ARGV, string.format, redis.call
local count, at, own, texts, algorithm, size = ARGV[1], 2, 8, 12
local reply = call('TIME')
local now = reply[1] * 1000000 + reply[2]
