-- arrive: when the one with that note first came to this lock. It is known by its
-- note, however often it comes; later arrivals are higher, without exception.
--
-- KEYS[1] arrivals
-- ARGV[1] note  <note> of the one that comes
-- ARGV[2] keep  how long it is known after it last came (ms)
--
-- reply new:   {its arrival (us), 1}
-- reply known: {its arrival (us), 0}
--
-- a:<note>  its arrival (us, 1e15 and up)
-- s:<note>  minus the ms at which it last came
local arrivals, note, keep = KEYS[1], ARGV[1], tonumber(ARGV[2])
--@include clock
local now_ms = math.floor(now_us / 1000)

local seen = tonumber(redis.call('ZSCORE', arrivals, 's:' .. note) or 0)
local arrival, new = nil, 1
if -seen > now_ms - keep then
  arrival, new = tonumber(redis.call('ZSCORE', arrivals, 'a:' .. note)), 0
else
  local last = redis.call('ZREVRANGEBYSCORE', arrivals, '+inf', 1e15, 'WITHSCORES', 'LIMIT', 0, 1)
  arrival = math.max(now_us, tonumber(last[2] or 0) + 1)
end
-- The TTL first: Redis may refuse it, to a user without the right, and then nothing is
-- to be written. Of a key that is not there yet it changes nothing.
local kept = redis.call('PEXPIRE', arrivals, keep + 60000)
redis.call('ZADD', arrivals, string.format('%d', arrival), 'a:' .. note, string.format('-%d', now_ms), 's:' .. note)

-- Those not seen for so long are forgotten, at most 64 a call.
for _, member in ipairs(redis.call('ZRANGEBYSCORE', arrivals, keep - now_ms, '(0', 'LIMIT', 0, 64)) do
  redis.call('ZREM', arrivals, member, 'a:' .. string.sub(member, 3))
end
if kept == 0 then
  redis.call('PEXPIRE', arrivals, keep + 60000)
end
return {arrival, new}
