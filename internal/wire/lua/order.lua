-- order: what all scripts of ordered keys share. Included, never sent alone.
-- Expects: lock and what clock has.
--
-- The tasks of an ordered key are members of the lock's own sorted set. The lowest one present is
-- the head, whatever its state, and only the head is given the lock. A member is
--
--   o:<nonce>|<state>|<seen>|<begun>|<retried>|<since>|<token>|<owner>|<note>    score: 8e15 + ticket
--
--   nonce    the stamp's, which is the member's identity; no task ID is. One that begins with ~ is no
--            stamp's: the task was enqueued by a plain client, and joined at its arrival
--   ticket   Redis' time (us from 1.6e15 us on) when the task was stamped, made unique; never changes
--   state    i  an intent: stamped; nobody has seen the task yet. since: its deadline after the ticket (ms)
--            a  seen in asynq, and it comes by itself; token: that of its last grant. since: when to
--               look for it again (ms), or empty
--            w  waits in a worker, as <token>|<owner>|<note>. since: how long after seen it counts as alive (ms)
--            p  parked; to be called when its turn is near
--            c  called. since: when (ms)
--            h  held: asynq has archived it, and the key stands. since: since when (ms)
--   seen     when it last arrived or was confirmed (us from 1.6e15 us on). A look acts only if it is unchanged
--   begun    retried + 1 of the last grant after which the handler began, or may have; empty: none
--   retried  asynq's count of attempts when it last asked
--
-- Beside the members there are
--   n:<nonce>  -(5e14 + ms): that task was done then, or refused for its ID; kept for done_life
--   k:<nonce>  the same score: that task left the order then, and was not done. A late confirm does not bring it back
--   s:<token>  the same score: that arrival was refused then. If its ask is sent again, it is refused again
--   s:<nonce>|<begun>|<how>  the same score: that task left the order then, and was not done; begun as in its member. how: ended or
--              unknown, see leave_order
--   s:skip|<ticket>  the same score: an operator skipped that task then. A skip that is sent again takes no other task out
--   u:<nonce>  -(7e15 + ticket), for a nonce with ~, whose ticket no header knows
--   t          -(5e15 + the highest ticket so far)
local now_at = now_us - 1.6e15
local done_life, order_life, held_life = 300000, 2592000000, 315360000000 -- ms: 5 minutes, 30 days, ten years

local function order_score(ticket)
  return string.format('%d', 8e15 + ticket)
end

-- order_name: the text of a member. Not by string.format, which ends a text at its first zero byte.
local function order_name(task)
  return table.concat({'o:' .. task.nonce, task.state, task.seen, task.begun, task.retried, task.since, task.token, task.owner, task.note}, '|')
end

local function read_order(name, score)
  local task = {name = name, ticket = score - 8e15}
  task.nonce, task.state, task.seen, task.begun, task.retried, task.since, task.token, task.owner, task.note =
    string.match(name, '^o:([^|]*)|(%l)|(%d*)|(%d*)|(%d*)|(%d*)|([^|]*)|([^|]*)|(.*)$')
  return task
end

-- put_order: store a member as it is now. The ZREM that removes nothing comes first: after it a full Redis
-- lets the ZADD pass. The old name leaves last, so that a command which Redis refuses loses no member.
local function put_order(task)
  local name = order_name(task)
  if name == task.name then
    return
  end
  redis.call('ZREM', lock, '')
  redis.call('ZADD', lock, order_score(task.ticket), name)
  if task.name then
    redis.call('ZREM', lock, task.name)
  end
  task.name = name
end

-- first_names: the first members with their scores, one after the other. Not all of them have to be read.
local function first_names(most)
  return redis.call('ZRANGEBYSCORE', lock, '(8e15', '+inf', 'WITHSCORES', 'LIMIT', '0', most)
end

-- heads: the first members.
local function heads(most)
  local found, list = first_names(most), {}
  for i = 1, #found, 2 do
    list[#list + 1] = read_order(found[i], tonumber(found[i + 1]))
  end
  return list
end

-- next_ticket: higher than every ticket before, also when Redis' clock has stepped back.
local function next_ticket()
  return math.max(now_at, -(redis.call('ZSCORE', lock, 't') or 0) - 5e15 + 1)
end

local function note_ticket(ticket)
  redis.call('ZADD', lock, 'LT', string.format('-%d', 5e15 + ticket), 't')
end

-- begin_order: that ticket is given. A key that is new gets its TTL before anything is in order: Redis may refuse
-- PEXPIRE to a user without the right. Returns the key's TTL of before (ms).
local function begin_order(ticket)
  local ttl = redis.call('PTTL', lock)
  note_ticket(ticket)
  if ttl < 0 and redis.pcall('PEXPIRE', lock, string.format('%d', order_life)) ~= 1 then
    redis.call('ZREM', lock, 't')
    redis.call('PEXPIRE', lock, string.format('%d', order_life))
  end
  return ttl
end

-- intent_name: the text of an intent, which a stamp that is sent twice finds.
local function intent_name(nonce, note, deadline)
  return string.format('o:%s|i||||%d|||', nonce, deadline) .. note
end

-- waits_alive: whether the member's worker has asked lately.
local function waits_alive(task)
  return task.state == 'w' and now_at - task.seen < task.since * 1000
end

-- due: whether somebody should look for the head in asynq, since it keeps others waiting. An intent
-- whose ticket is ahead of Redis' clock, which was stepped back, counts from now. A head that comes back later by itself is
-- looked for in five seconds of each minute too, at times of its own: an operator may have deleted it.
local function due(task)
  if task.state == 'i' then
    if task.seen == '' and task.ticket > now_at + 1000000 then
      task.seen = string.format('%d', now_at)
      put_order(task)
    end
    return now_at - (task.seen == '' and task.ticket or task.seen) >= task.since * 1000
  elseif task.state == 'a' then
    return now_ms >= (task.since == '' and math.floor((task.seen + 1.6e15) / 1000) + 5000 or tonumber(task.since))
      or (tonumber(task.since) or 0) > now_ms + 5000 and (now_ms + math.floor(task.ticket / 1000)) % 60000 < 5000
  end
  return task.state == 'w' and not waits_alive(task) and now_at - task.seen >= 5000000
end
