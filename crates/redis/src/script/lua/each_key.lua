-- Begins the loop over the keys. Each gets the same charge, as if it were alone. A key may occur several times.
local keys, get = #KEYS, call
-- Among several keys, a key of another type must not stop the script, since earlier keys have been charged.
if keys > 1 then get = redis.pcall end
for index = 1, keys do
  local key, beyond = KEYS[index], ARGV[7] or 0
  local old = get('GET', key)
  local admitted, tag, problem, state, expires = 0, ''
  if keys > 1 and type(old) == 'table' then old, problem = false, old.err end
