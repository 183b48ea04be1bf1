-- pool_inspect: read what is in a pool. It changes nothing. A value whose taker's deadline has
-- passed counts as free.
--
-- KEYS[1] pool
-- ARGV[1] most  how many values of each kind to list
--
-- reply {server time (us), free, taken, waiters, {free values}, {holder member, deadline (ms), ...}}
local pool, most = KEYS[1], tonumber(ARGV[1])
--@include clock
local after = '(' .. string.format('%d', math.floor(now_us / 1000))

local free = redis.call('ZCOUNT', pool, 6e15, '+inf')
local held = redis.call('ZCOUNT', pool, after, 1e14)
local lapsed = redis.call('ZCOUNT', pool, 1e11, 1e14) - held
local listed, holders = {}, {}
if most > 0 then
  listed = redis.call('ZRANGEBYSCORE', pool, 6e15, '+inf', 'LIMIT', 0, most)
  holders = redis.call('ZRANGEBYSCORE', pool, 1e11, 1e14, 'WITHSCORES', 'LIMIT', 0, most)
end
return {now_us, free + lapsed, held, redis.call('ZCOUNT', pool, 2e15, '(4e15'), listed, holders}
