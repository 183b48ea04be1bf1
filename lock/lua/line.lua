-- line: what ask and release share. Included, never sent alone.
-- Expects: lock, limit, now_us.
local now_ms = math.floor(now_us / 1000)

-- purge: holders and cooldowns whose deadline has passed leave.
local function purge()
  redis.call('ZREMRANGEBYSCORE', lock, 1e11, now_ms)
end

-- keep: the key outlives an entry that lasts ms from now; never shortened.
local function keep(ms)
  if redis.call('PTTL', lock) < ms + 1000 then
    redis.call('PEXPIRE', lock, ms + 1000)
  end
end

-- keep_parked: the key lasts 15 to 30 minutes more, longer than parked work
-- stays away by itself.
local function keep_parked()
  if redis.call('PTTL', lock) < 900000 then
    redis.call('PEXPIRE', lock, 1800000)
  end
end

-- tidy: without anybody in it the lock is no key.
local function tidy()
  local size = redis.call('ZCARD', lock)
  if size == 1 or (size == 2 and redis.call('ZSCORE', lock, 'i')) then
    redis.call('DEL', lock)
  end
end

-- back: a parked or called note has come, or parks anew: its entry goes, whose
-- score is away. Returns for how long it was in line, and since when called (ms).
local function back(note, away)
  local called = redis.call('ZSCORE', lock, 'l:' .. note)
  redis.call('ZREM', lock, 'p:' .. note, 'l:' .. note)
  -- -(1e14 + ms) while it is called, -(2e14 + ms) when that has lapsed.
  called = called and math.max(0, now_ms - (-called) % 1e14) or -1
  return math.floor((now_us - 1.6e15 - away % 2e15) / 1000), called
end

-- hold: make id a holder for at least length ms, with a fence above all before.
local function hold(id, length)
  local fence = now_us
  local last = redis.call('ZSCORE', lock, 'f')
  if last and -last - 1e15 >= fence then
    fence = -last - 1e15 + 1
  end
  local deadline = math.ceil(now_us / 1000) + length
  local stored = redis.call('ZSCORE', lock, 'h:' .. id)
  if stored and tonumber(stored) > deadline then
    deadline = tonumber(stored)
  end
  redis.call('ZADD', lock, string.format('%d', deadline), 'h:' .. id, string.format('-%d', 1e15 + fence), 'f')
  keep(length)
  return fence
end

-- grant: give all free slots to live waiters by ticket, and wake each. An entry
-- not refreshed in time is dropped, at most 64 a call. Returns the slots still
-- free for a newcomer (0 while anybody is in line), and the fence if the asker
-- itself was granted. What is parked is no waiter: no slot is kept for it.
local function grant(asker, ttl)
  local free = limit - redis.call('ZCOUNT', lock, 1e11, 1e14)
  local stale, mine = 0, nil
  while free > 0 do
    local head = redis.call('ZRANGEBYSCORE', lock, 2e15, '(4e15', 'LIMIT', 0, 1)[1]
    if not head then
      break
    end
    if stale == 64 then
      return 0, mine
    end
    local id = string.sub(head, 3)
    local until_ms = redis.call('ZSCORE', lock, 'd:' .. id)
    redis.call('ZREM', lock, head, 'd:' .. id)
    if id == asker then
      mine = hold(id, ttl)
      free = free - 1
    elseif until_ms and -until_ms > now_ms then
      -- token = <channel>.<G>.<nonce>: where to wake, and how long a lease to give.
      local token = string.match(id, '^[^|]*')
      local channel, length = string.match(token, '^([^.]+)%.(%d+)%.')
      local fence = hold(id, tonumber(length))
      -- pcall: an ACL without the channel must not abort the script after its writes.
      redis.pcall('PUBLISH', string.match(lock, '^[^{]*') .. channel,
        string.format('%s %d %d', token, fence, now_us))
      free = free - 1
    else
      stale = stale + 1
    end
  end
  if free < 0 then
    free = 0
  end
  return free, mine
end
