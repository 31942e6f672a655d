-- A queue is a bucket, and the holes in its line: places that were given back before their turn and with others behind
-- them, ' <first>+<rest>:<last>+<rest>' each, in their order, with a space before it, and none beyond `due`.
--
-- `old` is from here on what the key holds of the bucket alone.
local text, holes = old
local space = old and string.find(old, ' ', 1, true)
if space then old, holes = string.sub(old, 1, space - 1), string.sub(old, space) end
