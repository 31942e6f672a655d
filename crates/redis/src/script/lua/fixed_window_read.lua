-- A fixed window is its number (its start, divided by the period) and the units that were used in it:
-- '-<window>:<used>'.
--
-- ARGV: cost, limit, period. The period is below 2^50, so that the end of the window after the next is below
-- 2^53; the counts are below 10^15, and so is the cost.
local cost, limit, period = ARGV[at] + 0, ARGV[at + 1] + 0, ARGV[at + 2] + 0
local window, used = (now - now % period) / period, 0
if old then
  local stored, count_stored = string.match(old, '^-(%d+):(%d+)$')
  stored, count_stored = tonumber(stored), tonumber(count_stored)
  if not stored or stored >= 9007199254740992 or count_stored >= 1000000000000000 then
    if tag == '' and string.find(old, '@', 1, true) then break end
    problem = 'SLUICE the key holds no state of a fixed window'
    break
  end
  if stored > window + 1 then
    -- From the future: see bucket_read.lua.
    stored = window + 1
    if count ~= '0' then
      call('SET', key, format('-%d:%d', stored, count_stored) .. tag, 'PXAT', format('%d', ((stored + 1) * period + 999) / 1000))
    end
  end
  if stored >= window then window, used = stored, count_stored end
end
