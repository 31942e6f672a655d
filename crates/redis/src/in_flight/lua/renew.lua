-- Moves the units that a process has in flight into a field of this number, regardless of the server's earlier counts.
-- Units that requests have taken there already stay. It is sent when no call on the lower numbers is under way, and so
-- replaces the sum of all calls before it, including lost ones.
for _, field in ipairs(older) do call('HDEL', key, field) end
own = own + units
if own > 0 then admitted = 1 end
