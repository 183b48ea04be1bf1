-- sweep: remove what is dead: holders whose deadline has passed,
-- waiters that have not asked for too long. At most 1,000 of these a call: an
-- answer of 1,000 or more means that there may be more.
--
-- KEYS[1] lock
--
-- reply members removed: holders and waiters, each counted once
--
-- A caller does not know the lock's limit; one slot is what every lock has.
local lock, limit = KEYS[1], 1
--@include clock

--@include deadline

--@include form

if string_holder() then
  return 0 -- the key expires by itself
end
--@include line

local removed = redis.call('ZREMRANGEBYSCORE', lock, 1e11, now_ms)
for _, member in ipairs(redis.call('ZRANGEBYSCORE', lock, -now_ms, '(0', 'LIMIT', 0, 1000)) do
  local id = string.sub(member, 3)
  removed = removed + redis.call('ZREM', lock, 'e:' .. id)
  redis.call('ZREM', lock, member)
end
local held = holders()
if removed > 0 and removed < 1000 then
  grant(held)
end
if redis.call('ZSCORE', lock, 'f') then
  tidy()
end
return removed
