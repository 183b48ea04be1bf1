-- line: what ask and release share. Included, never sent alone.
-- Expects: lock, limit, now_us, and what deadline has.
--
-- A redis.call costs a third of a microsecond before it does anything, and as much again for
-- a number as an argument, but nothing for text. So bounds are texts, and values that are
-- known are not read again.

-- own: the channel of the process that reads the reply, if the reply can have messages; told:
-- that reply, with messages from the second element on, or nil without any.
local own, told

-- far: whether score is later than any lease or cooldown can end: then Redis' clock has
-- stepped back since.
local function far(score)
  local ahead = score - now_ms - 31000
  return ahead > 0 and ahead > 30000 * 2 ^ math.floor(score % 1 * 64) - 30000
end

-- lower_far: after such a step, lower ends that are too far to the longest length that they
-- can have from now. No live holder loses its slot: it counts its lease from before it sent
-- an ask or renewal, for the length that it asked for. So its lease ends, for itself, no
-- later than that length from now, which is before the stored end.
local function lower_far()
  local found = redis.call('ZRANGEBYSCORE', lock, string.format('%d', now_ms + 31000), '1e14', 'WITHSCORES', 'LIMIT', '0', '1000')
  for i = 1, #found, 2 do
    local score = tonumber(found[i + 1])
    if far(score) then
      local mark = score % 1
      redis.call('ZREM', lock, '') -- removes nothing: after it a full Redis lets the ZADD pass
      redis.call('ZADD', lock, string.format('%.7f', now_ms + 1 + 30000 * 2 ^ math.floor(mark * 64) + mark), found[i])
    end
  end
end

-- keep_key: make the key outlive an entry that lasts ms from now. It never shortens the TTL.
-- Call it before the entry is written: Redis may refuse it to a user without the right.
local function keep_key(ms)
  local ttl = redis.call('PTTL', lock)
  if ttl == -1 then -- somebody has made the key persist: it must outlive its holders, too
    local last = redis.call('ZREVRANGEBYSCORE', lock, '1e14', '1e11', 'WITHSCORES', 'LIMIT', '0', '1')[2]
    ms = math.max(ms, math.ceil((last or 0) - now_ms))
  end
  if ttl < ms + 1000 then
    redis.call('PEXPIRE', lock, ms + 1000)
  end
end

--@include gate

-- holders: remove holders whose deadline has passed. Returns how many hold the lock, who of
-- them has the first deadline, and that deadline (ms). It also reads the gate, whose scores are
-- below those of the holders.
local function holders()
  local found = redis.call('ZRANGEBYSCORE', lock, '1e9', '1e14', 'WITHSCORES', 'LIMIT', '0', '2')
  if found[2] and tonumber(found[2]) < 1e11 then
    read_gate()
    found = redis.call('ZRANGEBYSCORE', lock, '1e11', '1e14', 'WITHSCORES', 'LIMIT', '0', '2')
  end
  if found[2] and tonumber(found[2]) <= now_ms then
    redis.call('ZREMRANGEBYSCORE', lock, '1e11', string.format('%d', now_ms))
    found = redis.call('ZRANGEBYSCORE', lock, '1e11', '1e14', 'WITHSCORES', 'LIMIT', '0', '2')
  end
  if found[2] and (far(found[2]) or found[4] and far(found[4])) then
    lower_far()
    found = redis.call('ZRANGEBYSCORE', lock, '1e11', '1e14', 'WITHSCORES', 'LIMIT', '0', '2')
  end
  local held = #found / 2
  if held == 2 and limit > 2 then
    held = redis.call('ZCOUNT', lock, '1e11', '1e14')
  end
  return held, found[1], found[2]
end

-- keep_parked: the key lasts 15 to 30 minutes more, longer than parked work
-- stays away by itself.
local function keep_parked()
  if redis.call('PTTL', lock) < 900000 then
    redis.call('PEXPIRE', lock, 1800000)
  end
end

-- shorten: lower the TTL of a key in which nothing is parked to that of its last entry: the
-- last deadline of a holder, the last mark of a waiter, or the gate. That of an ordered key is left to keep_order.
local function shorten()
  if redis.call('ZCOUNT', lock, '(8e15', '+inf') + redis.call('ZCOUNT', lock, '-6e14', '-5e14') > 0 then
    return
  end
  local last = redis.call('ZREVRANGEBYSCORE', lock, '1e14', '1e11', 'WITHSCORES', 'LIMIT', '0', '1')[2]
  local mark = redis.call('ZRANGEBYSCORE', lock, '-1e14', '-1e11', 'WITHSCORES', 'LIMIT', '0', '1')[2]
  local life = math.ceil(math.max(tonumber(last or 0) - now_ms, -(mark or 0) - now_ms)) + 1000
  if gate > 0 then
    life = math.max(life, math.ceil((memory - now_us) / 1000) + 1000)
  end
  if life > 1000 and redis.call('PTTL', lock) > life then
    redis.call('PEXPIRE', lock, string.format('%d', life))
  end
end

-- tidy: delete the key if nobody is in it. While the gate is closed, or has a rate to
-- remember, the key stays until that is over. Callers have read the gate.
local function tidy()
  local size = redis.call('ZCARD', lock) - gate
  if size > 1 and (size > 2 or not redis.call('ZSCORE', lock, 'i')) then
    return
  end
  if memory <= now_us then
    redis.call('DEL', lock)
  else
    shorten()
  end
end

-- remove_parked: a parked or called note has arrived, or parks anew. Remove its entry, whose score is
-- away. Returns how long the note was in line, and how long ago it was called (ms).
local function remove_parked(note, away)
  local called = redis.call('ZSCORE', lock, 'l:' .. note)
  redis.call('ZREM', lock, 'p:' .. note, 'l:' .. note)
  -- -(1e14 + ms) while it is called, -(2e14 + ms) when that has lapsed.
  called = called and math.max(0, now_ms - (-called) % 1e14) or -1
  return math.floor((now_us - 1.6e15 - away % 2e15) / 1000), called
end

-- raise_fence: a fence above all before, stored.
local function raise_fence()
  local fence = math.max(now_us, -(redis.call('ZSCORE', lock, 'f') or 0) - 1e15 + 1)
  redis.call('ZADD', lock, string.format('-%d', 1e15 + fence), 'f')
  return fence
end

-- moved: this script freed or granted a slot, or a waiter left, so the first waiter may not know when
-- the gate opens.
local moved = false

-- take_slot: make id a holder for length ms. Returns its fence. Callers have called keep_key, and
-- have found the gate open.
local function take_slot(id, length)
  local deadline = deadline_score(length)
  -- LT: a new member is added, and f is lowered to this time, or is as low
  -- already (the clock stood still, or went back).
  local changed = redis.call('ZADD', lock, 'LT', 'CH', deadline, 'h:' .. id, string.format('-%d', 1e15 + now_us), 'f')
  moved = true
  local fence = changed == 2 and now_us or raise_fence()
  count_start(id)
  return fence
end

-- send: publish message on channel, or put it into the reply if that process reads it.
local function send(channel, message)
  if channel == own then
    told = told or {false}
    told[#told + 1] = message
  else
    -- pcall: an ACL without the channel must not abort the script after its writes.
    redis.pcall('PUBLISH', string.match(lock, '^[^{]*') .. channel, message)
  end
end

-- tell_head: send the first waiter when the gate opens, unless it is the asker.
local function tell_head(asker)
  local head = redis.call('ZRANGEBYSCORE', lock, '2e15', '(4e15', 'LIMIT', '0', '1')[1]
  if head and string.sub(head, 3) ~= asker then
    local token, channel = string.match(head, '^e:(([^.|]+)%.%d+%.[^|]*)')
    send(channel, string.format('%s -3 %d %d', token, now_us, opens - now_us))
  end
end

-- apart: whether the token of id has a ~ (OnePerNote): then id gets no slot while a holder has
-- its note.
local function apart(id)
  return string.find(id, '^[^.|]*%.%d+%.~')
end

-- note_of: the note in a body, or in the member h:<body> or e:<body>. It is all that follows the
-- second |, and may be empty.
local function note_of(body)
  return string.match(body, '^[^|]*|[^|]*|(.*)$')
end

-- noted: a live holder with that note, or nil. Callers have removed dead holders. Each holder
-- costs a third of a microsecond, so only the first 1,000 are read; and only the first 128 if
-- id may hold beside its note, when the result is for the busy reply alone.
local function noted(id, note)
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', lock, '1e11', '1e14', 'LIMIT', '0', apart(id) and '1000' or '128')) do
    if note_of(member) == note then
      return member
    end
  end
end

-- twin: the holder with the note of id, if id is apart; nil otherwise. slots is the limit of id: a
-- mutex needs no check.
local function twin(id, slots)
  return slots > 1 and apart(id) and noted(id, note_of(id)) or nil
end

-- mark: the score of d:<body> for an entry that lives for stay ms, of an asker with this limit. Its
-- fraction, in 2048ths, is that limit, so that a release grants the entry by its own limit. No
-- fraction: 1. slots_of is the limit in such a mark. From 2,047 on the releaser's limit counts if it is
-- higher.
local function mark(stay)
  if limit > 1 then
    return string.format('-%.7f', now_ms + stay + math.min(limit, 2047) / 2048)
  end
  return string.format('-%d', now_ms + stay)
end

local function slots_of(until_ms)
  local slots = math.max(1, until_ms % 1 * 2048)
  return slots == 2047 and math.max(slots, limit) or slots
end

-- mark_ahead: how far ahead a waiter's mark can be (ms): three seconds, and one for clocks
-- that are slewed. If a mark is further ahead, Redis' clock was stepped back.
local mark_ahead = 4000

-- shorten_marks: lower marks from before such a step to mark_ahead, at most 64 a call. A live
-- waiter sets its own mark within a second. Without this, a dead waiter would count as live
-- until the clock has caught up.
local function shorten_marks()
  local found = redis.call('ZRANGEBYSCORE', lock, '-1e14', string.format('-%d', now_ms + mark_ahead + 1), 'WITHSCORES', 'LIMIT', '0', '64')
  for i = 1, #found, 2 do
    redis.call('ZADD', lock, string.format('-%.7f', now_ms + mark_ahead + -found[i + 1] % 1), found[i])
  end
end

-- grant: give the free slots to live waiters, in the order of their tickets, and send each a
-- message. held: how many slots are taken; head: the first waiter, nil if not known. Each waiter is
-- granted by its own limit. The first one that its limit keeps waiting has all behind it wait, too.
--
-- It drops waiters that did not refresh their entries in time. It passes over a waiter with a
-- twin, which keeps its place. Parked work is not granted anything.
-- While the gate is closed, or the lock is paused, no slot is free.
--
-- Returns the slots that are still free for a newcomer (0 while anybody waits), and the fence if
-- the asker itself was granted a slot.
local function grant(held, head, asker, ttl)
  local free = limit - held
  local passed, mine, ahead = 0, nil, false
  while limit > 0 and passed < 64 do
    if opens > now_us then
      if moved and free > 0 then
        tell_head(asker)
      end
      free = 0
      break
    end
    head = head or redis.call('ZRANGEBYSCORE', lock, '2e15', '(4e15', 'LIMIT', passed, '1')[1]
    if not head then
      break
    end
    local id = string.sub(head, 3)
    local entry = 'd:' .. id
    local until_ms = -(redis.call('ZSCORE', lock, entry) or 0)
    local lives = id == asker or until_ms > now_ms
    local slots = id == asker and limit or slots_of(until_ms)
    if lives and held == 2 and slots > 2 and limit <= 2 then
      held = redis.call('ZCOUNT', lock, '1e11', '1e14') -- holders counts to two for such a limit
    end
    if lives and held >= slots then
      free = 0
      break
    end
    local waits = lives and twin(id, slots)
    -- token = <channel>.<G>.<nonce>: where to wake, and how long a lease to give.
    local token, channel, length = string.match(id, '^(([^.|]+)%.(%d+)%.[^|]*)')
    length = id == asker and ttl or tonumber(length)
    if not waits then
      if lives then
        keep_key(length)
      end
      redis.call('ZREM', lock, head, entry, 'i') -- i: the slot is taken, or calls sets it again
    end
    head = nil
    if waits then
      passed = passed + 1
    elseif lives then
      local fence = take_slot(id, length)
      held, free = held + 1, free - 1
      if id == asker then
        mine = fence
      else
        send(channel, string.format('%s %d %d', token, fence, now_us))
        ahead = ahead or until_ms > now_ms + mark_ahead
      end
      if free <= 0 and slots <= limit then
        break -- usually all have one limit, and a look at the next waiter would be in vain
      end
    end
  end
  if ahead then
    shorten_marks() -- after the writes above: a full Redis refuses a ZADD that comes first
  end
  return math.max(0, free), mine
end
