-- Refunds the debt that is left of a charge.
--
-- ARGV: the number of the algorithm, its five numbers (with the price or the cost of the charge), and the receipt: two
-- numbers for a bucket, and for a window its number and 0. From 9 on, the quota.
local ARGV, format, call, key = ARGV, string.format, redis.call, KEYS[1]
local algorithm, at, count, beyond, own, texts = ARGV[1], 2, 1, 0, 9, 13
local receipt, receipt_rest = ARGV[7] + 0, ARGV[8] + 0
local reply = call('TIME')
local old = call('GET', key)
local now = reply[1] * 1000000 + reply[2]
-- Here, `admitted` is 1 if units were refunded. Without a `state`, the key owes nothing after the refund.
local admitted, tag, size, problem, state, expires = 0, ''
