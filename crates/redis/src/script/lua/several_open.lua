-- Several different keys of a request, of any algorithms: the script charges all of them, or no key. With alternatives,
-- which are sets of these keys, it charges the first set whose keys all have room, or no key. It does so for any number
-- of requests with the same charges, one after the other, each as if it were alone.
--
-- KEYS: the keys of each request in turn.
-- ARGV: the number of keys of a request, and a million for each number that lists the alternatives. For each key the
-- number of its algorithm (0: it is only read; 5: no algorithm admits the cost) and five numbers, with zeros at the end.
-- Then the alternatives: the numbers of the keys of each, from 1 on, and a zero behind each. Behind these, if a limiter
-- has quotas of the keys' own, four numbers for each key. At the end, if the call converts a state, two texts for each
-- key.
local ARGV, KEYS, format, call, count = ARGV, KEYS, string.format, redis.call, 1
local reply = call('TIME')
local now = reply[1] * 1000000 + reply[2]
local size, place, get, states, ends, listed = ARGV[1] + 0, 3, call, {}, {}, 0
if size >= 1000000 then
  size, listed = size % 1000000, (size - size % 1000000) / 1000000
end
-- Among several requests, a key of another type must not stop the script, since earlier requests have been charged.
if #KEYS > size then get = redis.pcall end
for before = 0, #KEYS - 1, size do
  -- `is_open`: the caller makes the call again for a key that could not be decided.
  local charged, is_open = 1, false
  for index = 1, size do
    local key, at = KEYS[before + index], 6 * index - 3
    local algorithm, old = ARGV[at - 1], get('GET', key)
    local own, texts = 6 * size + listed + 4 * index - 2, 10 * size + listed + 2 * index
    local admitted, beyond, tag, problem, state, expires = 0, 0, ''
    if get ~= call and type(old) == 'table' then old, problem = false, old.err end
