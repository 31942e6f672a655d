-- Adds a lot. ARGV: units, the microseconds until it expires or 0, the millisecond at which it expires, for how many
-- milliseconds its reference is known at least
local expires, known = ARGV[3] + 0, ARGV[4] + 0
if ARGV[2] ~= '0' then
  expires = math.min(math.ceil((time[1] * 1000000 + time[2] + ARGV[2]) / 1000), NEVER)
end
if expires < NEVER then known = math.max(known, expires - now) end
local is_new = true
for _, lot in ipairs(lots) do
  if lot[1] == expires then is_new = false end
end
if is_repeated then
  done = 2
elseif expires <= now then
  done = 5
elseif left + units >= 1000000000000000 then
  done = 4
elseif is_new and #lots >= 64 then
  done = 3
else
  remember(known)
  add(expires, units)
  keep()
  done = 1
end
