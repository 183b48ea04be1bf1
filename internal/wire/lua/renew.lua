-- renew: make a lease last longer. Never shortens it, never retakes a lost one.
--
-- KEYS[1] lock
-- ARGV[1] body    <token>|<owner>|<note> of the holder; in a pool <value>|<body>
-- ARGV[2] length  how long the lease shall last from now (ms)
-- ARGV[3] trace=0 1: write in any case, so that replicas are sent something, and a WAIT after
--                 this on the same connection is about this lease
--
-- Trailing arguments equal to their default (after =) may be omitted.
--
-- reply 1 renewed: the deadline is at least that far away
-- reply 0 lost:    no such holder, or its deadline has passed
local lock, body, length, trace = KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3] or 0)
--@include clock

--@include deadline

--@include form

local taker, left = string_holder()
if taker and taker ~= body then
  return 0 -- always so with a trace: who waits for replicas takes no string
elseif taker and length > longest(body) then
  widen(taker, left)
elseif taker then
  redis.call('PEXPIRE', lock, math.max(left, length))
  return 1
end
local deadline = tonumber(redis.call('ZSCORE', lock, 'h:' .. body) or 0)
if deadline <= math.floor(now_us / 1000) then
  return 0
end
local wanted = math.ceil(now_us / 1000) + length
if wanted > deadline then
  -- The TTL first, always: a full Redis refuses a ZADD, of a member that is there
  -- too, unless the script has written before, and it never refuses these two.
  local life = redis.call('PTTL', lock)
  if life < 0 then
    redis.call('PERSIST', lock) -- a pool, which lasts for ever
  else
    redis.call('PEXPIRE', lock, string.format('%d', math.max(life, length + 1000)))
  end
  redis.call('ZADD', lock, deadline_score(length, deadline), 'h:' .. body)
end
if trace == 1 then
  -- A deadline that stays where it is changes nothing, and what changes nothing is
  -- not replicated, though the one before may have reached no replica. A fence may
  -- always be raised: it is the last one, and the next is above it. (The ZREM
  -- removes nothing: after a command that writes, a full Redis lets the ZADD pass.)
  redis.call('ZREM', lock, '')
  redis.call('ZADD', lock, 'INCR', -1, 'f')
end
return 1
