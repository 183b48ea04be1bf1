-- arrive: when the work with that note first came to this lock. The first call stores it.
-- A later arrival always has a higher number.
--
-- KEYS[1] arrivals
-- ARGV[1] note  <note> of the work
-- ARGV[2] keep  how long an arrival is stored after the last call with its note (ms)
-- ARGV[3] away=0   for how long the work will not come (ms): its arrival is stored for keep after that
-- ARGV[4] known=0  1: store nothing for a note that has no arrival
--
-- reply new:   {its arrival (us), 1}
-- reply known: {its arrival (us), 0}
-- reply none:  {0, 0}
--
-- a:<note>  its arrival (us, 1e15 and up)
-- s:<note>  minus the ms of the last call with this note, or of the end of away
local arrivals, note, keep, away = KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3] or 0)
--@include clock

local seen = tonumber(redis.call('ZSCORE', arrivals, 's:' .. note) or 0)
local arrival, new = nil, 1
if -seen > now_ms - keep then
  arrival, new = tonumber(redis.call('ZSCORE', arrivals, 'a:' .. note)), 0
elseif (ARGV[4] or 0) == '1' then
  return {0, 0}
else
  local last = redis.call('ZREVRANGEBYSCORE', arrivals, '+inf', 1e15, 'WITHSCORES', 'LIMIT', 0, 1)
  arrival = math.max(now_us, tonumber(last[2] or 0) + 1)
end
-- The TTL first: Redis may refuse it to a user without the right, and then nothing must be
-- written. It does nothing if the key does not exist yet.
local life = math.max(keep + away + 60000, redis.call('PTTL', arrivals))
local kept = redis.call('PEXPIRE', arrivals, life)
redis.call('ZADD', arrivals, string.format('%d', arrival), 'a:' .. note, string.format('-%d', now_ms + away), 's:' .. note)

-- Delete arrivals whose last call was longer than keep ago, at most 64.
for _, member in ipairs(redis.call('ZRANGEBYSCORE', arrivals, keep - now_ms, '(0', 'LIMIT', 0, 64)) do
  redis.call('ZREM', arrivals, member, 'a:' .. string.sub(member, 3))
end
if kept == 0 then
  redis.call('PEXPIRE', arrivals, life)
end
return {arrival, new}
