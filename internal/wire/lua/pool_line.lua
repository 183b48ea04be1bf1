-- pool_line: what the scripts of a pool share. Included, never sent alone.
-- Expects: pool, now_us.
--
-- t:<value>         6e15 + ticket while the value is free (first in, first out), 1 while it is taken
-- h:<value>|<body>  deadline (ms) of the taker; value is escaped, so it has no |
-- b:<body>|<value>  0; the same pair, to be found by body
-- e:, d:, f         as for every lock, see line
local last_free = nil

-- put: make the value free, behind the values that are free already.
local function put(value)
  if not last_free then
    local last = redis.call('ZREVRANGEBYSCORE', pool, '+inf', 6e15, 'WITHSCORES', 'LIMIT', 0, 1)
    last_free = math.max(6e15 + now_us - 1.6e15, tonumber(last[2] or 0))
  end
  last_free = last_free + 1
  redis.call('ZADD', pool, string.format('%d', last_free), 't:' .. value)
end

-- taken: the value that body has taken, or nil. Redis orders members with the same score by
-- their bytes, so the probe b:<body>| stands right before b:<body>|<value>: no other body begins
-- with this token, and no value is empty.
local function taken(body)
  local probe = 'b:' .. body .. '|'
  redis.call('ZADD', pool, 0, probe)
  local rank = redis.call('ZRANK', pool, probe)
  local next = redis.call('ZRANGE', pool, rank + 1, rank + 1)[1]
  redis.call('ZREM', pool, probe)
  if next and string.sub(next, 1, #probe) == probe then
    return string.sub(next, #probe + 1)
  end
  return nil
end

-- drop: forget that body has taken value.
local function drop(value, body)
  redis.call('ZREM', pool, 'h:' .. value .. '|' .. body, 'b:' .. body .. '|' .. value)
end

-- purge: make free the values of takers whose deadline has passed, at most 1,000 a call. drop comes
-- before put: a full Redis lets a script add something once the script has removed something.
local function purge()
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', pool, 1e11, now_ms, 'LIMIT', 0, 1000)) do
    local value, body = string.match(member, '^h:([^|]*)|(.*)$')
    drop(value, body)
    put(value)
  end
end

-- settle: set how long the pool lasts. With values, free or taken, it lasts for ever. With waiters
-- only, it lasts a minute from now. Without either, it is deleted.
local function settle()
  if redis.call('ZCOUNT', pool, 6e15, '+inf') + redis.call('ZCOUNT', pool, 1, 1) > 0 then
    redis.call('PERSIST', pool)
  elseif redis.call('ZCOUNT', pool, 2e15, '(4e15') == 0 then
    redis.call('DEL', pool)
  elseif redis.pcall('PEXPIRE', pool, 60000) ~= 1 then
    redis.call('DEL', pool) -- waiters without a TTL could stay for ever
    redis.call('PEXPIRE', pool, 60000) -- fails again, and says why
  end
end

-- take_slot: give the first free value to body for length ms. Returns fence and value.
local function take_slot(body, length)
  local value = string.sub(redis.call('ZRANGEBYSCORE', pool, 6e15, '+inf', 'LIMIT', 0, 1)[1], 3)
  local fence = now_us
  local last = redis.call('ZSCORE', pool, 'f')
  if last and -last - 1e15 >= fence then
    fence = -last - 1e15 + 1
  end
  redis.call('ZADD', pool, 1, 't:' .. value, 0, 'b:' .. body .. '|' .. value,
    string.format('%d', math.ceil(now_us / 1000) + length), 'h:' .. value .. '|' .. body,
    string.format('-%d', 1e15 + fence), 'f')
  return fence, value
end

-- grant: give free values to live waiters by ticket. Returns how many values are left for a
-- newcomer (0 while anybody is in line), and the fence and the value that the asker itself got.
local function grant(asker, ttl)
  local free = redis.call('ZCOUNT', pool, 6e15, '+inf')
  local fence, value
  while free > 0 do
    local head = redis.call('ZRANGEBYSCORE', pool, 2e15, '(4e15', 'LIMIT', 0, 1)[1]
    if not head then
      break
    end
    local body = string.sub(head, 3)
    local until_ms = redis.call('ZSCORE', pool, 'd:' .. body)
    redis.call('ZREM', pool, head, 'd:' .. body)
    if body == asker then
      fence, value = take_slot(body, ttl)
      free = free - 1
    elseif until_ms and -until_ms > now_ms then
      local token = string.match(body, '^[^|]*')
      local channel, length = string.match(token, '^([^.]+)%.(%d+)%.')
      local its_fence, its_value = take_slot(body, tonumber(length))
      redis.pcall('PUBLISH', string.match(pool, '^[^{]*') .. channel,
        string.format('%s %d %d %s', token, its_fence, now_us, its_value))
      free = free - 1
    end
  end
  return free, fence, value
end
