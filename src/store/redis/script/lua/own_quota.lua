-- The quota of the key, if its limiter has one for each key. It stands behind the state: '-…@<limit>:<burst>:<period>',
-- the period in nanoseconds. It is compared as text and never computed with.
--
-- ARGV from `own` on: the three numbers (0: none), and the millisecond at which a converted state expires. From `texts` on,
-- if a state is to be converted: the text that was read, and the one to put in its place (empty: none). It is stored
-- whatever is decided, and only if the key still holds what was read.
if ARGV[own] then
  if old and old ~= '' and old == ARGV[texts] then
    old = ARGV[texts + 1]
    if old == '' then
      old = false
      call('DEL', key)
    else
      call('SET', key, old, 'PXAT', ARGV[own + 3])
    end
  end
  if ARGV[own] ~= '0' then
    local quota = '@' .. ARGV[own] .. ':' .. ARGV[own + 1] .. ':' .. ARGV[own + 2]
    if old then
      if string.sub(old, -#quota) ~= quota then break end
      old = string.sub(old, 1, -1 - #quota)
    end
    tag = quota
  end
end
