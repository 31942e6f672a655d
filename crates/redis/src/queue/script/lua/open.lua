  -- A queue is a bucket with holes: reservations that were returned before their turn, with others behind them.
  -- Each is stored as ' <first>+<rest>:<last>+<rest>', in order, with a space before it, and none ends after `due`.
  -- Last comes ' <most>': how far ahead `due` may be, in microseconds, as in the process with the greatest bounds of
  -- those that have made reservations. So a process with small bounds does not cut off what others have reserved.
  --
  -- From here on, `old` is the state of the bucket alone, and `tag` is what is written behind the holes.
  local text, holes, most = old
  local own = string.sub(ARGV[at + 1], 1, -2) - 1 + beyond
  if old then old, holes, most = string.match(old, '^(%-[%d+]+)([ %d+:]*) (%d+)$') end
  -- The loop in which the blocks of a bucket are, see open.lua there.
  repeat
  if problem then break end
  if text and not (most and most + 0 < 2251799813685248) then
    problem = 'SLUICE the key holds no schedule of a queue'
    break
  end
  if not most or most + 0 < own then most = own end
  beyond, tag = beyond + most - own, format(' %d', most)
