-- The standing of the key, if it has one: until when it is banned, and until when it owes more than it had left, in
-- microseconds. It stands before the state, '!<banned>:<owing>!<state>'. While one of them lasts nothing is charged or
-- refunded, and all of the text is left in `old`; the state, which may be none, is that of the end. After that, it counts.
--
-- A key that is only read beside others passes unless it is banned.
repeat
if problem then break end
if old and string.byte(old) == 33 then
  local banned, owing, rest = string.match(old, '^!(%d+):(%d+)!(.*)$')
  banned, owing = tonumber(banned), tonumber(owing)
  if not banned or banned >= 9007199254740992 or owing >= 9007199254740992 then
    problem = 'SLUICE the key holds no standing'
    break
  end
  if banned > now or owing > now and algorithm ~= '0' then break end
  if owing <= now then old = rest ~= '' and rest end
end
