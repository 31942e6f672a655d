-- Moves the units that a process has in flight into a field of this number, whatever the server knew of them. Requests
-- may have taken units there already: they stay. It is sent when no call on the lower numbers is under way, and so
-- replaces the sum of all calls before it, also of those that were lost.
for _, field in ipairs(older) do call('HDEL', key, field) end
own = own + units
if own > 0 then admitted = 1 end
