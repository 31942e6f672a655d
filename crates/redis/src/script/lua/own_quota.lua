-- The quota of the key, if its limiter has one for each key. It stands behind the state: '-…@<limit>:<burst>:<period>',
-- the period in nanoseconds. The script compares it as text and never computes with it.
--
-- ARGV from `own` on: the three numbers (0: none), and the millisecond at which a converted state expires. From `texts`
-- on, if the call converts a state: the text that the caller read, and its replacement (empty: delete the key). The
-- replacement is stored with any decision, but only if the key still has the text that was read.
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
