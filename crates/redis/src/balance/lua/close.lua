-- Seconds, microseconds, what was done, and: the units that are left afterwards, those that were taken, from where, and
-- until when the lots would have sufficed.
local state = format('%.0f;%.0f;%.0f;%.0f;%.0f;%.0f', left, taken, first, last, paid, suffices)
return time[1] .. ',' .. time[2] .. ',' .. format('%.0f', done) .. ',' .. state .. (KEYS[2] and ',' or '')
