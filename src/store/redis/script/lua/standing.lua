-- The standing of the key, if it has one: the times until which it is banned, and until which it owes more than it had
-- left, in microseconds. It is before the state, '!<banned>:<owing>!<state>'. While one of the two lasts, nothing is
-- charged or refunded, and `old` keeps the whole text. The state, which may be missing, is the state at the end of the
-- standing, and counts from then on.
--
-- A key that is only read together with others passes, unless it is banned.
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
