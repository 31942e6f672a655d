-- Begins the loop over the keys, which are charged alike and independently: each as if it were alone. The same key may be
-- there several times.
local keys = #KEYS
for index = 1, keys do
  local key, beyond = KEYS[index], ARGV[7] or 0
  -- Not `call`: a key of another type must not stop the script, since those before it have been charged.
  local old = redis.pcall('GET', key)
  local admitted, tag, problem, state, expires = 0, ''
  if type(old) == 'table' then old, problem = false, old.err end
