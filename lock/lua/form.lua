-- form: the two forms of a lock. Included, never sent alone.
-- Expects: lock, now_us, and what deadline has.
--
-- A mutex that nobody waits for is a string: SET <lock> <body> NX PX <ttl>. The key expires
-- at the holder's deadline. Everything else is in the sorted set that line describes. A
-- script that meets the string answers for it in its first lines, or widens it.

-- longest: how long a lease with that body lasts at most without widening (ms): 30 s, or with
-- n+ in its token, 30 s doubled n times. And n.
local function longest(body)
  local doublings = tonumber(string.match(body, '^[^.]+%.%d+%.~?(%d+)%+') or 0)
  return 30000 * 2 ^ doublings, doublings
end

-- string_holder: the body of who holds the lock as a string, and for how many ms yet; nil: the
-- lock is a sorted set, or nobody's. The third is true if the key lasts longer than its
-- lease can: Redis' clock has stepped back since. The second is then what it can last.
local function string_holder()
  local body = redis.call('MGET', lock)[1] -- unlike GET it is no error on a sorted set
  if not body then
    return nil
  end
  local left = redis.call('PTTL', lock)
  if left < 0 or not string.find(body, '^[^.|]+%.%d+%.[^|]+|[^|]*|') then
    redis.call('ZCARD', lock) -- a string that is no lock's: the error is Redis' own
  end
  local most = longest(body)
  if left > most + 1000 then
    return body, most, true
  end
  return body, left, false
end

-- widen: make the string, as string_holder has returned it, a sorted set that others can join.
-- The holder keeps its deadline. The fence is this moment: above all that were told
-- before; and the holder is told this one, or was told an earlier one of its own time.
local function widen(body, left)
  -- A Cluster's slot that is being moved: once the key is deleted here, it belongs to the
  -- other node, and the ZADD would be refused. A key of the slot that is not there is
  -- refused for the same reason now, before anything has changed.
  redis.call('EXISTS', lock .. ':none')
  -- The end is counted from a time after left was read: up to Redis 7.0 the clock goes on
  -- within a script, and from an earlier time the end would come before the key's own.
  local time = redis.call('TIME')
  now_us = math.max(now_us, time[1] * 1000000 + time[2])
  local _, doublings = longest(body)
  -- What Redis may refuse, to a user without the right, it refuses before the DEL: so the
  -- holder keeps its lock. A ZADD to a string changes nothing. After a first write that
  -- Redis allows, a full Redis lets a script go on.
  -- One about to end gets a second more, so that it does not end in this script.
  redis.call('PEXPIRE', lock, left < 100 and left + 1000 or left)
  if not string.find(redis.pcall('ZADD', lock, 0, '').err, 'WRONGTYPE', 1, true) then
    redis.call('ZADD', lock, 0, '') -- fails again, and says why
  end
  redis.call('DEL', lock)
  redis.call('ZADD', lock, deadline_score(left, doublings / 64 + 1 / 128), 'h:' .. body, string.format('-%d', 1e15 + now_us), 'f')
  redis.call('PEXPIRE', lock, left + 1000)
end

-- taken_at: when a holder got its slot (us). fence tells; of one that was a string fence is
-- when it was widened, and the nonce in its token is when it asked, by its own clock.
local function taken_at(member, deadline, fence)
  local nonce
  if deadline and deadline % 1 * 128 % 2 == 1 then
    nonce = string.match(member, '^h:[^.]+%.%d+%.~?%d+%+(%w+)') or string.match(member, '^h:[^.]+%.%d+%.~?(%w+)')
  end
  return math.min(fence, tonumber(nonce or '', 36) or fence)
end
