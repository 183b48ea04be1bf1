-- confirm: renew that always leaves a trace in what replicas are sent, so that a
-- WAIT after it on the same connection is about this lease. Never shortens it,
-- never retakes a lost one.
--
-- KEYS[1] lock
-- ARGV[1] body    <token>|<owner>|<note> of the holder; in a pool <value>|<body>
-- ARGV[2] length  how long the lease shall last from now (ms)
--
-- reply 1 renewed: the deadline is at least that far away
-- reply 0 lost:    no such holder, or its deadline has passed
local lock, body, length = KEYS[1], ARGV[1], tonumber(ARGV[2])
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]

local deadline = tonumber(redis.call('ZSCORE', lock, 'h:' .. body) or 0)
if deadline <= math.floor(now_us / 1000) then
  return 0
end
local wanted = math.ceil(now_us / 1000) + length
if wanted > deadline then
  redis.call('ZADD', lock, wanted, 'h:' .. body)
  local life = redis.call('PTTL', lock) -- below 0: a pool, which lasts for ever
  if life >= 0 and life < length + 1000 then
    redis.call('PEXPIRE', lock, length + 1000)
  end
end
-- A deadline that stays where it is changes nothing, and what changes nothing is
-- not replicated, though the one before may have reached no replica. A fence may
-- always be raised: it is the last one, and the next is above it.
redis.call('ZADD', lock, 'INCR', -1, 'f')
return 1
