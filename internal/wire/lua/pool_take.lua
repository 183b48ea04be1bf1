-- pool_take: take a value out of a pool, or join its line, or stay in line. It is the ask of
-- pools. Like ask it is idempotent: a second take of a body finds the value of the first.
--
-- KEYS[1] pool
-- ARGV[1] body  <token>|<owner>|<note> of the asker
-- ARGV[2] ttl   length of the lease asked for (ms)
-- ARGV[3] stay  life of a line entry without another ask (ms); 0: do not join
--
-- reply yours: {fence, value}
-- reply busy:  {server time (us), until the first deadline (ms, -1: no holder), place in line, holder member}
local pool, body, ttl, stay = KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
--@include clock

--@include pool_line

purge()
local mine = taken(body)
if mine then
  local member = 'h:' .. mine .. '|' .. body
  local deadline = math.ceil(now_us / 1000) + ttl
  if deadline > tonumber(redis.call('ZSCORE', pool, member)) then
    redis.call('ZADD', pool, string.format('%d', deadline), member)
  end
  local fence = -redis.call('ZSCORE', pool, 'f') - 1e15 + 1
  redis.call('ZADD', pool, string.format('-%d', 1e15 + fence), 'f')
  return {fence, mine}
end

local free, fence, value = grant(body, ttl)
if free > 0 and not fence then
  redis.call('ZREM', pool, 'e:' .. body, 'd:' .. body)
  fence, value = take_slot(body, ttl)
end
if fence then
  settle()
  return {fence, value}
end

local before = '(4e15'
if stay > 0 then
  local mine_since = redis.call('ZSCORE', pool, 'e:' .. body)
  if not mine_since then
    mine_since = string.format('%d', 2e15 + now_us - 1.6e15)
    redis.call('ZADD', pool, mine_since, 'e:' .. body)
  end
  redis.call('ZADD', pool, -(now_ms + stay), 'd:' .. body)
  before = '(' .. mine_since
end
settle()
local place = redis.call('ZCOUNT', pool, 2e15, before)
local first = redis.call('ZRANGEBYSCORE', pool, 1e11, 1e14, 'WITHSCORES', 'LIMIT', 0, 1)
local wait = -1
if first[2] then
  wait = math.max(0, math.ceil(first[2] - now_ms)) -- 0: this holder's deadline has passed, and purge stopped before it
end
return {now_us, wait, place, first[1] or ''}
