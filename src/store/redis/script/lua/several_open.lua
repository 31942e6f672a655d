-- Several keys, all different, of any algorithms: all are charged or none.
--
-- ARGV: for each key which algorithm (0: it is only read), and five numbers for it, with zeros at the end. Behind those of
-- all keys, if a limiter has quotas of the keys' own, four numbers for each key; and behind these, if a state is to be
-- converted, two texts for each key.
local ARGV, format, call, count = ARGV, string.format, redis.call, 1
local reply = call('TIME')
local now = reply[1] * 1000000 + reply[2]
local all, states, ends = 1, {}, {}
for index = 1, #KEYS do
  local key, at = KEYS[index], 6 * index - 4
  local algorithm, old = ARGV[at - 1], call('GET', key)
  local own, texts = 6 * #KEYS + 4 * index - 3, 10 * #KEYS + 2 * index - 1
  local admitted, beyond, tag, problem, state, expires = 0, 0, ''
