-- take: take a mutex that is free, with a fence, or say who has it. One key, so it runs while a Cluster moves the slot.
--
-- KEYS[1] word
-- ARGV[1] body   <token>|<owner>|<note>
-- ARGV[2] lease  how long it wants the lock (ms)
--
-- reply as ask: fence, or {0, wait, 0, named}: another has it alone; 0: it is fat, or the caller's: ask decides
local w = redis.call('GET', KEYS[1])
if not w then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end
if w == ARGV[1] or string.sub(w, 1, 1) == '+' or not string.find(w, '|', 1, true) then return 0 end
return {0, math.max(1, redis.call('PTTL', KEYS[1])), 0, w}
