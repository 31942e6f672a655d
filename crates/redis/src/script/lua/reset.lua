-- Deletes a key, and a second one if there is one. Replies as for empty keys.
local call = redis.call
call('DEL', unpack(KEYS))
local time = call('TIME')
return time[1] .. ',' .. time[2] .. ',0' .. string.rep(',', #KEYS)
