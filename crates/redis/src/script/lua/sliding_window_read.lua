-- A sliding window is its number, the units that were used in the previous window, and in itself:
-- '-<window>:<previous>:<current>'.
--
-- ARGV: as for a fixed window.
local cost, limit, period = ARGV[at] + 0, ARGV[at + 1] + 0, ARGV[at + 2] + 0
local window, previous, current = (now - now % period) / period, 0, 0
if old then
  local stored, first, second = string.match(old, '^-(%d+):(%d+):(%d+)$')
  stored, first, second = tonumber(stored), tonumber(first), tonumber(second)
  if not stored or stored >= 9007199254740992 or first >= 1000000000000000 or second >= 1000000000000000 then
    if tag == '' and string.find(old, '@', 1, true) then break end
    problem = 'SLUICE the key holds no state of a sliding window'
    break
  end
  if stored > window + 1 then
    -- From the future: see bucket_read.lua.
    stored = window + 1
    if count ~= '0' then
      -- The units of the window itself still count in the next one.
      local ends = (stored + (second > 0 and 2 or 1)) * period
      call('SET', key, format('-%d:%d:%d', stored, first, second) .. tag, 'PXAT', format('%d', (ends + 999) / 1000))
    end
  end
  if stored >= window then
    window, previous, current = stored, first, second
  elseif stored + 1 == window then
    previous = second
  end
end
