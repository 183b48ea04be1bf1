-- read: all controls there are. Reads only.
--
-- KEYS[1] controls
-- ARGV[1] most  how many entries are read at most
--
-- reply {server time (us), how many there are, {target, entry, ...}}; no target where there are more than most
local time = redis.call('TIME')
local count = redis.call('HLEN', KEYS[1])
local entries = {}
if count <= tonumber(ARGV[1]) then
  entries = redis.call('HGETALL', KEYS[1])
end
return {time[1] * 1000000 + time[2], count, entries}
