-- Several keys of a request, all different, of any algorithms: all are charged or none. And so for any number of requests
-- that are charged alike, one after the other, each as if it were alone.
--
-- KEYS: those of each request in turn.
-- ARGV: how many keys a request has, and for each of these which algorithm (0: it is only read), and five numbers for it,
-- with zeros at the end. Behind those of all keys, if a limiter has quotas of the keys' own, four numbers for each key; and
-- behind these, if a state is to be converted, two texts for each key.
local ARGV, KEYS, format, call, count = ARGV, KEYS, string.format, redis.call, 1
local reply = call('TIME')
local now = reply[1] * 1000000 + reply[2]
local size, place, get, states, ends = ARGV[1] + 0, 3, call, {}, {}
-- Among several requests, a key of another type must not stop the script, since those before it have been charged.
if #KEYS > size then get = redis.pcall end
for before = 0, #KEYS - 1, size do
  local all = 1
  for index = 1, size do
    local key, at = KEYS[before + index], 6 * index - 3
    local algorithm, old = ARGV[at - 1], get('GET', key)
    local own, texts = 6 * size + 4 * index - 2, 10 * size + 2 * index
    local admitted, beyond, tag, problem, state, expires = 0, 0, ''
    if get ~= call and type(old) == 'table' then old, problem = false, old.err end
