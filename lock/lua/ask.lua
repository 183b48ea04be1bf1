-- ask: take a slot of the lock, or join its line, or stay in it.
-- Idempotent for one body: a resent ask ends as the first one did.
--
-- KEYS[1] lock
-- ARGV[1] body   <token>|<owner>|<note> of the asker
-- ARGV[2] limit  slots of this lock, as the asker sees it
-- ARGV[3] ttl    length of the lease asked for (ms)
-- ARGV[4] keep   how long the key then lasts at least (ms)
-- ARGV[5] stay   life of a line entry without another ask (ms); 0: do not join
--
-- reply yours: fence
-- reply busy:  {server time (us), until the first deadline (ms, -1: no holder), place in line, holder member}
--
-- Numbers that Redis is to store go through string.format('%d'): Redis itself
-- would print them with %.17g, at three times the cost.
local lock, body = KEYS[1], ARGV[1]
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]

-- An idle lock is no key at all: nothing to purge, nobody to overtake.
if redis.call('EXISTS', lock) == 0 then
  redis.call('ZADD', lock, string.format('%d', math.ceil(now_us / 1000) + ARGV[3]), 'h:' .. body,
    string.format('-%d', 1e15 + now_us), 'f')
  redis.call('PEXPIRE', lock, ARGV[4])
  return now_us
end
local limit, ttl, stay = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[5])

--@include line

purge()
if redis.call('ZSCORE', lock, 'h:' .. body) then
  -- Ours already: a resent ask, or one that crossed a grant. The asker counts
  -- its deadline from this ask, so the stored one is made to reach that far.
  return hold(body, ttl)
end

local free, fence = grant(body, ttl)
if fence then
  return fence
end
if free > 0 then
  redis.call('ZREM', lock, 'e:' .. body, 'd:' .. body)
  return hold(body, ttl)
end

local before = '(4e15'
if stay > 0 then
  local ticket = redis.call('ZSCORE', lock, 'e:' .. body)
  if not ticket then
    ticket = string.format('%d', 2e15 + now_us - 1.6e15)
    redis.call('ZADD', lock, ticket, 'e:' .. body)
  end
  redis.call('ZADD', lock, -(now_ms + stay), 'd:' .. body)
  keep(stay)
  before = '(' .. ticket
end
local place = redis.call('ZCOUNT', lock, 2e15, before)

local first = redis.call('ZRANGEBYSCORE', lock, 1e11, 1e14, 'WITHSCORES', 'LIMIT', 0, 1)
local holder, wait = first[1] or '', -1
if first[2] then
  wait = first[2] - now_ms
end
local note = string.match(body, '^[^|]*|[^|]*|(.*)$')
if limit > 1 and note ~= '' then
  -- Among several holders, one with the asker's own note tells most.
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', lock, 1e11, 1e14, 'LIMIT', 0, limit)) do
    if string.match(member, '^h:[^|]*|[^|]*|(.*)$') == note then
      holder = member
      break
    end
  end
end
return {now_us, wait, place, holder}
