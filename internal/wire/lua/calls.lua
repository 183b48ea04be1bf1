-- calls: what release and call share. Included after line, never sent alone.

-- parked_end: the score that puts a note at the end of the parked notes. It counts from now,
-- or from the last ticket, which is later if Redis' clock was stepped back.
local function parked_end()
  local last = redis.call('ZREVRANGEBYSCORE', lock, '(6e15', '4e15', 'WITHSCORES', 'LIMIT', '0', '1')[2]
  return math.max(4e15 + now_us - 1.6e15, tonumber(last or 0) + 1)
end

-- calls: call parked notes, in the order of their tickets, until called and waiting entries
-- together are max(inbound, free). A note that has been in line for 5 s is called all the
-- same: waiters may overtake, but not for ever. Notes called longer than life (ms) ago that
-- have not arrived are overdue: they keep their places, since asynq may have them pending, and
-- do not count as called, so that the line goes on. Of more than 64 overdue ones those go to the
-- end of the line that were called first. ended: a slot came free just now.
--
-- Returns nil if nothing is parked or called. Otherwise {code, parked, until the first
-- deadline or the gate opens (ms, -1: neither), called note, ...}. A called note is returned
-- each time until it asks.
local function calls(code, free, inbound, life, ended)
  -- Parked and called entries have the highest scores of all.
  local last = redis.call('ZRANGE', lock, '-1', '-1')[1]
  if not last or string.sub(last, 1, 2) ~= 'p:' then
    return nil
  end
  keep_parked()
  if inbound > 0 then
    inbound = math.max(inbound, free)
    local five_ago = 4e15 + now_us - 1.6e15 - 5000000
    -- Calls from after now: Redis' clock was stepped back since. They count as made
    -- now, at most 64 a call, or they would lapse only when the clock has caught up.
    local ahead = redis.call('ZRANGEBYSCORE', lock, '(-2e14', string.format('-%d', 1e14 + now_ms + 1000), 'LIMIT', 0, 64)
    for _, member in ipairs(ahead) do
      redis.call('ZADD', lock, string.format('-%d', 1e14 + now_ms), member)
    end
    local oldest = -(1e14 + now_ms - life)
    local overdue = redis.call('ZCOUNT', lock, oldest, -1e14)
    local lapsed = overdue > 64
      and redis.call('ZREVRANGEBYSCORE', lock, -1e14, oldest, 'WITHSCORES', 'LIMIT', 0, math.min(overdue - 64, 64)) or {}
    local at_end = #lapsed > 0 and parked_end()
    for i = 1, #lapsed, 2 do
      redis.call('ZADD', lock, string.format('%d', at_end + i), 'p:' .. string.sub(lapsed[i], 3),
        string.format('%d', lapsed[i + 1] - 1e14), lapsed[i])
    end
    local called = redis.call('ZCOUNT', lock, 6e15, 8e15) - (overdue - #lapsed / 2)
    local more = inbound - called - redis.call('ZCOUNT', lock, 2e15, '(4e15')
    if more <= 0 and called == 0 and redis.call('ZCOUNT', lock, 4e15, five_ago) > 0 then
      more = 1
    end
    if more > 0 then
      local heads = redis.call('ZRANGEBYSCORE', lock, 4e15, '(6e15', 'WITHSCORES', 'LIMIT', 0, more)
      local since = string.format('-%d', 1e14 + now_ms)
      for i = 1, #heads, 2 do
        redis.call('ZADD', lock, string.format('%d', heads[i + 1] + 2e15), heads[i],
          since, 'l:' .. string.sub(heads[i], 3))
      end
    end
  end
  if free > 0 and (ended or not redis.call('ZSCORE', lock, 'i')) then
    redis.call('ZADD', lock, string.format('-%d', 3e14 + now_ms), 'i')
  end
  local first = redis.call('ZRANGEBYSCORE', lock, 1e11, 1e14, 'WITHSCORES', 'LIMIT', 0, 1)[2]
  local soonest = first and math.ceil(first - now_ms) or -1
  if opens > now_us and (not first or limit > 1) then
    soonest = math.ceil((opens - now_us) / 1000) -- with a slot free, or soon
  end
  local reply = {code, redis.call('ZCOUNT', lock, 4e15, '(6e15'), soonest}
  for i, member in ipairs(redis.call('ZRANGEBYSCORE', lock, 6e15, 8e15, 'LIMIT', 0, 128)) do
    reply[3 + i] = string.sub(member, 3)
  end
  return reply
end
