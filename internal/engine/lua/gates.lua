-- gates: the gate that keeps an asker out. Reads only.
--
-- KEYS 1 to 6 as ask. ARGV[1] slots. The reply is named, as ask has it.
local w, limit, named, wait, same = redis.call('GET', KEYS[1]) or '+0 0 gate', nil, ''
--@include head
limit = tonumber(ARGV[1])
--@include shut
return named
