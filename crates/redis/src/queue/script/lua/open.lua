  -- A queue is a bucket with holes: reservations that were returned before their turn, with others behind them.
  -- Each is stored as ' <first>+<rest>:<last>+<rest>', in order, with a space before it, and none ends after `due`.
  --
  -- From here on, `old` is the state of the bucket alone.
  local text, holes = old
  local space = old and string.find(old, ' ', 1, true)
  if space then old, holes = string.sub(old, 1, space - 1), string.sub(old, space) end
  -- The loop in which the blocks of a bucket are, see open.lua there.
  repeat
  if problem then break end
  if space and string.find(holes, '[^ %d+:]') then
    problem = 'SLUICE the key holds no schedule of a queue'
    break
  end
