-- control_read: all controls there are. Reads only.
--
-- KEYS[1] controls
-- ARGV[1] most  how many entries are read at most
--
-- reply {server time (us), how many there are, {target, entry, ...}}; no target where there are more than most
local controls = KEYS[1]
--@include clock

local count = redis.call('HLEN', controls)
local entries = {}
if count <= tonumber(ARGV[1]) then
  entries = redis.call('HGETALL', controls)
end
return {now_us, count, entries}
