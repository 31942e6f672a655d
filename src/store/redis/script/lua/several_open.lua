-- Several keys, all different, of any algorithms: all are charged or none.
--
-- ARGV: for each key which algorithm (0: it is only read), and five numbers for it, with zeros at the end.
local ARGV, format, call, count, beyond = ARGV, string.format, redis.call, 1, 0
local reply = call('TIME')
local now = reply[1] * 1000000 + reply[2]
local all, states, ends = 1, {}, {}
for index = 1, #KEYS do
  local key, at = KEYS[index], 6 * index - 4
  local algorithm, old = ARGV[at - 1], call('GET', key)
  local admitted, state, expires = 0
  if algorithm == '0' then
    admitted = 1
