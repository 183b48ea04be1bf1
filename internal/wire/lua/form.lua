-- form: the two forms of a lock. Included, never sent alone.
-- Expects: lock, now_us, now_ms, and deadline_score of deadline.
--
-- A mutex that nobody waits for is a string: SET <lock> <body> NX PX <ttl>. The key expires
-- at the holder's deadline. In every other case the lock is the sorted set that line describes. A
-- script that meets the string replies for it in its first lines, or widens it.

-- longest: the longest time (ms) for which a lease with that body is stored as a string: 30 s, or
-- 30 s doubled n times if its token has n+. Returns that time and n.
local function longest(body)
  local doublings = tonumber(string.match(body, '^[^.]+%.%d+%.~?(%d+)%+') or 0)
  return 30000 * 2 ^ doublings, doublings
end

-- string_holder: if the lock is a string, returns the body of its holder, the time until its
-- deadline (ms), and false. If the key would last longer than any lease with that body (Redis'
-- clock has stepped back, or somebody has made the key persist), the time is the longest possible one, and
-- the third result true.
-- Returns nil if the lock is a sorted set or has no holder.
local function string_holder()
  local body = redis.call('MGET', lock)[1] -- unlike GET it is no error on a sorted set
  if not body then
    return nil
  end
  local left = redis.call('PTTL', lock)
  if not string.find(body, '^[^.|]+%.%d+%.[^|]+|[^|]*|') then
    redis.call('ZCARD', lock) -- fails with Redis' own error: the string is no lock's
  end
  local most = longest(body)
  if left < 0 or left > most + 1000 then
    return body, most, true
  end
  return body, left, false
end

-- widen: turn the string, as string_holder has returned it, into a sorted set that others can
-- join. The holder keeps its deadline. The stored fence is the present time, so it is above every
-- fence that was given out before. The holder's own fence is this one, or the earlier one that it
-- has asked for already.
local function widen(body, left)
  -- While a Cluster moves the slot, a key that is deleted here belongs to the other node, so
  -- Redis would refuse the ZADD after the DEL. EXISTS names a key of the slot that is never
  -- there: Redis refuses it for the same reason, before anything has changed.
  redis.call('EXISTS', lock .. ':none')
  -- The time is read again, after left: up to Redis 7.0 the clock goes on within a script. Counted
  -- from the earlier time, the deadline would come before the key's expiry.
  local time = redis.call('TIME')
  now_us = math.max(now_us, time[1] * 1000000 + time[2])
  now_ms = math.floor(now_us / 1000)
  local _, doublings = longest(body)
  -- Redis refuses a command that the user has no right to. So the script tries PEXPIRE and ZADD
  -- before the DEL: if Redis refuses one, the holder keeps its lock. ZADD XX to a key that is not there
  -- changes nothing. After the first write that it allows, a full Redis lets the script go on.
  -- A key about to expire gets a second more, so that it does not expire within this script.
  redis.call('PEXPIRE', lock, left < 100 and left + 1000 or left)
  redis.call('ZADD', lock .. ':none', 'XX', 0, '')
  redis.call('DEL', lock)
  redis.call('ZADD', lock, deadline_score(left, doublings / 64 + 1 / 128), 'h:' .. body, string.format('-%d', 1e15 + now_us), 'f')
  redis.call('PEXPIRE', lock, left + 1000)
end

-- taken_at: when a holder got its slot (us). That is its fence. If the holder was a string, its
-- fence is the time of the widening, and the nonce in its token is the time at which it asked, by
-- its own clock; the earlier of the two counts.
local function taken_at(member, deadline, fence)
  local nonce
  if deadline and deadline % 1 * 128 % 2 == 1 then
    nonce = string.match(member, '^h:[^.]+%.%d+%.~?%d+%+(%w+)') or string.match(member, '^h:[^.]+%.%d+%.~?(%w+)')
  end
  return math.min(fence, tonumber(nonce or '', 36) or fence)
end
