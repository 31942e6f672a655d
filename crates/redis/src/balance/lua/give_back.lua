-- Gives back units of a charge: first to the lot that was charged last, up to what it has paid, and the others to the
-- lot that was charged first. ARGV: units, the first lot, the last lot, what the last lot has paid
local to_last = math.min(units, ARGV[4] + 0)
add(ARGV[3] + 0, to_last)
add(ARGV[2] + 0, units - to_last)
keep()
done = 1
