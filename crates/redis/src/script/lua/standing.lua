-- The standing of the key, if it has one: the times until which it is banned, until which it owes more than it had left,
-- and until which an operator allows it, in microseconds, and the operator's reason. It is before the state,
-- '!<banned>:<owing>:<allowed>:<reason>!<state>'. While one of the three lasts, nothing is charged or refunded, and `old`
-- keeps the whole text. The state, which may be missing, is the state at the end of the ban or the debt, and counts from
-- then on.
--
-- Among several keys (`size` is their number), a key that is allowed passes; and so does a key that is only read, unless
-- it is banned.
repeat
if problem then break end
if old and string.byte(old) == 33 then
  local banned, owing, allowed, rest = string.match(old, '^!(%d+):(%d+):(%d+):[^!:]*!(.*)$')
  banned, owing, allowed = tonumber(banned), tonumber(owing), tonumber(allowed)
  if not banned or banned >= 9007199254740992 or owing >= 9007199254740992 or allowed >= 9007199254740992 then
    problem = 'SLUICE the key holds no standing'
    break
  end
  if allowed > now then
    if size then algorithm, admitted = '0', 1 end
    break
  end
  if banned > now or owing > now and algorithm ~= '0' then break end
  if owing <= now then old = rest ~= '' and rest end
end
