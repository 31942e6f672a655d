-- A bucket is the time at which its debt will be paid: `due`, and `rest` of the `parts` of a microsecond. Stored as
-- '-<mark><due>', which Redis keeps as an integer without extra bytes, or '-<mark><due>+<rest>'. The mark is three
-- digits that stand for the rate by which the debt is a time. Behind it, `due` has sixteen digits. A state with a quota
-- behind it has no mark, nor has a queue. Behind the state and before a quota, '~<micros>' is the debt beyond a full
-- bucket when the state was converted.
--
-- ARGV: price, capacity, the rests of both, parts (nil or 0: all rests are zero). Capacity and `beyond` together are
-- below 2^51, and so is the price. There are at most 2^52 parts. So no sum reaches 2^53. The price is written as itself
-- plus one, followed by the mark (999: none). The capacity is written as itself plus one, followed by 1 if a state with
-- another mark is left to the caller, which converts it. With 0, its time counts.
local price, full, parts = string.sub(ARGV[at], 1, -4) - 1, now + string.sub(ARGV[at + 1], 1, -2) - 1, ARGV[at + 4]
local mark, form = string.sub(ARGV[at], -3), '-%d'
if mark ~= '999' and tag == '' then form = '-' .. mark .. '%016d' end
local price_rest, full_rest = 0, 0
if parts == '0' then parts = nil end
if parts then
  parts, price_rest, full_rest = parts + 0, ARGV[at + 2] + 0, ARGV[at + 3] + 0
end
local due, rest = now, 0
if old then
  if form ~= '-%d' and string.find(old, '^-%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d') then
    if string.sub(old, 2, 4) ~= mark and string.sub(ARGV[at + 1], -1) == '1' then break end
    old = '-' .. string.sub(old, 5)
  end
  if string.find(old, '~', 1, true) then
    local bucket, more = string.match(old, '^(.+)~(%d+)$')
    if bucket and more + 0 < 2251799813685248 then old, tag, beyond = bucket, '~' .. more .. tag, more end
  end
  -- Only digits: `tonumber` alone would read '-0x10' and '-1e15', too.
  due = string.find(old, '^-%d+$') and 0 - old
  if not due then
    due, rest = string.match(old, '^-(%d+)%+(%d+)$')
    due, rest = tonumber(due), tonumber(rest)
  end
  if not due or due >= 9007199254740992 or rest >= 9007199254740992 then
    if tag == '' and string.find(old, '@', 1, true) then break end
    problem = 'SLUICE the key holds no state of a bucket'
    break
  end
  -- The state may be from another quota with other parts.
  if not parts then rest = 0 elseif rest >= parts then rest = parts - 1 end
  local most = full + beyond
  if due < now then
    due, rest = now, 0
  elseif due > most or due == most and rest > full_rest then
    -- From the future: the clock was set back, or the bucket was larger. The correction is stored, because the old
    -- state would stay beyond the limit until the clock has caught up.
    due, rest = most, full_rest
    if count ~= '0' then
      call('SET', key, format(form .. '+%d', due, rest) .. tag, 'PXAT', format('%d', (due + 1000) / 1000))
    end
  end
end
