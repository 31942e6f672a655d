-- Deletes a key. Replies as for an empty key.
local call = redis.call
call('DEL', KEYS[1])
local time = call('TIME')
return time[1] .. ',' .. time[2] .. ',0,'
