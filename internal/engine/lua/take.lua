-- take: take a lock that is free, with a fence. One key, so it runs while a Cluster moves the slot.
--
-- KEYS[1] word
-- ARGV[1] body   <token>|<owner>|<note>
-- ARGV[2] lease  how long it wants the lock (ms)
--
-- reply fence; 0: it is not free, or the caller's already: ask decides
if not redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 0 end
local time = redis.call('TIME')
return time[1] * 1000000 + time[2]
