-- inspect: who holds the lock and how long its line is. Reads only.
--
-- KEYS[1] lock
-- ARGV[1] most  how many holders to list; 0: none
--
-- reply {server time (us), holders, waiters, {holder member, deadline (ms), ...}}
local lock, most = KEYS[1], tonumber(ARGV[1])
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local after = '(' .. string.format('%.0f', math.floor(now_us / 1000))

local listed = {}
if most > 0 then
  listed = redis.call('ZRANGEBYSCORE', lock, after, 1e14, 'WITHSCORES', 'LIMIT', 0, most)
end
return {now_us, redis.call('ZCOUNT', lock, after, 1e14), redis.call('ZCOUNT', lock, 2e15, '(4e15'), listed}
