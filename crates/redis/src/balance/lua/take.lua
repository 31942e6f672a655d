-- Takes units from the lots in their order. ARGV[2]: if there are not enough, take 0: nothing; 1: what is left; 2: what
-- is left, and the key owes the rest. ARGV[3]: for how many milliseconds the reference of a charge by hand is known.
local rest, shortfall = math.max(units - left, 0), ARGV[2]
local later = 0
for index = #lots, 1, -1 do
  later = later + lots[index][2]
  if later >= units then
    suffices = lots[index][1]
    break
  end
end
if is_repeated then
  done = 2
elseif shortfall == '2' and owed + rest >= 1000000000000000 then
  done = 4
elseif units > 0 and (rest == 0 or shortfall ~= '0') then
  done, taken = 1, units - rest
  local due = taken
  for _, lot in ipairs(lots) do
    if due == 0 then break end
    paid = math.min(lot[2], due)
    due, left = due - paid, left - paid
    if first == 0 then first = lot[1] end
    last = lot[1]
    if paid == lot[2] then
      call('HDEL', key, format('%.0f', last))
    else
      call('HSET', key, format('%.0f', last), format('%.0f', lot[2] - paid))
    end
  end
  if shortfall == '2' then
    remember(ARGV[3] + 0)
    if rest > 0 then
      owed = owed + rest
      call('HSET', key, 'owed', format('%.0f', owed))
      keep()
    end
  end
end
