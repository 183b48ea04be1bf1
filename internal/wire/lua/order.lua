-- order: what the scripts of ordered keys share. Included after line, never sent alone.
-- Expects: lock, limit (1, or 0 while the lock is paused), and what line has.
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
--   begun    retried + 1 of the last grant
--   retried  asynq's count of attempts when it last asked
--
-- Beside the members there are
--   n:<nonce>  -(5e14 + ms): that task was done then; kept for done_life
--   k:<nonce>  the same score: that task left the order then, and was not done. A late confirm does not bring it back
--   s:<token>  the same score: that arrival was refused then. If its ask is sent again, it is refused again
--   s:<nonce>|<begun>  the same score: that task left the order then under Continue, begun as in its member
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

-- new_order: a member that is in no set yet.
local function new_order(nonce, ticket, note)
  return {nonce = nonce, ticket = ticket, state = 'a', seen = '', begun = '', retried = '', since = '', token = '', owner = '', note = note}
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

-- find_order: the member with that nonce. A ticket of 0 is not known.
local function find_order(nonce, ticket)
  if ticket == 0 then
    local at = redis.call('ZSCORE', lock, 'u:' .. nonce)
    if not at then
      return nil
    end
    ticket = -at - 7e15
  end
  local score = order_score(ticket)
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', lock, score, score, 'LIMIT', '0', '100')) do
    local task = read_order(name, tonumber(score))
    if task.nonce == nonce then
      return task
    end
  end
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

-- remove_order: the task has left the order.
local function remove_order(task)
  redis.call('ZREM', lock, task.name, 'u:' .. task.nonce)
end

local function put_mark(kind, nonce)
  redis.call('ZREMRANGEBYSCORE', lock, string.format('(-%d', 5e14 + now_ms - done_life), '-5e14')
  if string.sub(nonce, 1, 1) ~= '~' then
    redis.call('ZADD', lock, string.format('-%d', 5e14 + now_ms), kind .. nonce)
  end
end

-- mark_done: the stamped task of that nonce is done. A redelivery of it is answered without a run.
local function mark_done(nonce)
  put_mark('n:', nonce)
end

-- mark_left: the stamped task of that nonce has left the order otherwise. If an operator runs it, it runs.
local function mark_left(nonce)
  put_mark('k:', nonce)
end

-- mark_spent: the arrival with that token was refused, since its task's attempts are spent.
local function mark_spent(token)
  put_mark('s:', token)
end

-- mark_begun: the task of that nonce has left the order, and its last run was that after <retried> attempts. If asynq could not
-- note its end, it counts one more, and the task comes back with as many: then it does not run. An operator's run counts none.
local function mark_begun(nonce, begun)
  put_mark('s:', nonce .. '|' .. begun)
end

-- hold_order: the task is archived, and its key stands.
local function hold_order(task)
  task.state, task.since, task.token, task.owner = 'h', string.format('%d', now_ms), '', ''
  put_order(task)
end

-- waits_alive: whether the member's worker has asked lately.
local function waits_alive(task)
  return task.state == 'w' and now_at - task.seen < task.since * 1000
end

-- runs: whether a live holder has the member's note.
local function runs(task)
  local holder = noted('', task.note)
  return holder and tonumber(redis.call('ZSCORE', lock, holder)) > now_ms
end

-- keep_order: the key lasts for 30 days after its last use while a task is in order, for ten years while
-- its head is held, and otherwise until the last done mark, lease or gate has ended.
local function keep_order()
  local head = heads('1')[1]
  local life, ttl = order_life, redis.call('PTTL', lock)
  if not head then
    local last = redis.call('ZREVRANGEBYSCORE', lock, '1e14', '1e11', 'WITHSCORES', 'LIMIT', '0', '1')[2]
    life = math.max(0, (last or 0) - now_ms, math.ceil((memory - now_us) / 1000))
    local done = redis.call('ZRANGEBYSCORE', lock, '-6e14', '-5e14', 'WITHSCORES', 'LIMIT', '0', '1')[2]
    if done then
      life = math.max(life, math.min(done_life, -done - 5e14 + done_life - now_ms))
    end
    if life <= 0 and redis.call('ZCOUNT', lock, '2e15', '8e15') == 0 then
      redis.call('DEL', lock)
      return
    end
    redis.call('PEXPIRE', lock, string.format('%d', life + 1000))
  elseif head.state == 'h' then
    if ttl < held_life / 2 then
      redis.call('PEXPIRE', lock, string.format('%d', held_life))
    end
  elseif ttl < life - 86400000 or ttl > life then -- it is written once a day at most
    local last = redis.call('ZREVRANGEBYSCORE', lock, '1e14', '1e11', 'WITHSCORES', 'LIMIT', '0', '1')[2]
    life = math.max(life, (last or 0) - now_ms + 1000, math.ceil((memory - now_us) / 1000) + 1000)
    redis.call('PEXPIRE', lock, string.format('%d', life))
  end
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

-- advance: give the lock to the head if it waits in a worker, and name the tasks to call and the head to
-- look for. It calls parked tasks in order until inbound of them and of waiting ones are coming, and
-- none behind a member that is not coming. ended: a slot came free just now, so no head is late yet.
--
-- Returns the slots that are free, and nil if nobody is kept waiting, else
-- {parked and waiting, until the first deadline or the gate opens (ms, -1: neither), named, ...}. A named task is
-- |c|<state>|<nonce>|<ticket>|<seen>|<note> to call, or |l|... to look for.
local function advance(inbound, ended)
  local held, _, first_end = holders()
  local names = first_names(math.max(2, inbound + 1))
  local head = names[1] and read_order(names[1], tonumber(names[2]))
  local closed = opens > now_us
  if head and held < limit and not closed and waits_alive(head) then
    local token, channel, length = string.match(head.token, '^(([^.|]+)%.(%d+)%..*)')
    keep_key(tonumber(length))
    redis.call('ZREM', lock, 'i')
    local fence = take_slot(table.concat({token, head.owner, head.note}, '|'), tonumber(length))
    head.state, head.since, head.owner = 'a', '', ''
    head.begun, head.seen = string.format('%d', (head.retried == '' and 0 or head.retried) + 1), string.format('%d', now_at)
    put_order(head)
    send(channel, string.format('%s %d %d', token, fence, now_us))
    held = held + 1
    first_end = now_ms + length
  end
  local free = math.max(0, limit - held)
  local count = #names < 4 and #names / 2 or redis.call('ZCOUNT', lock, '(8e15', '+inf')
  if count == 0 or count == 1 and (held > 0 or head.state ~= 'p' and head.state ~= 'c') then
    return free, nil
  end
  local soonest = first_end and math.max(1, math.ceil(first_end - now_ms)) or -1
  if closed and held < limit then
    soonest = math.ceil((opens - now_us) / 1000)
  end
  local reply = {count, soonest}
  local function name(kind, task)
    reply[#reply + 1] = string.format('|%s|%s|%s|%d|%s|', kind, task.state, task.nonce, task.ticket, task.seen) .. task.note
  end
  if limit > 0 and free > 0 and not closed and not ended and due(head) then
    name('l', head)
  end
  local coming = 0
  if limit > 0 and not (closed and opens > now_us + 1000000) then
    for i = 1, #names, 2 do
      local task = i == 1 and head or read_order(names[i], tonumber(names[i + 1]))
      if task.state == 'p' and coming < inbound then
        task.state, task.since = 'c', string.format('%d', now_ms)
        put_order(task)
      end
      if task.state == 'c' then
        name('c', task)
      elseif not waits_alive(task) and not (i == 1 and held > 0) then
        break
      end
      if task.state ~= 'a' then
        coming = coming + 1
      end
    end
  end
  if free > 0 and coming > 0 and (ended or not redis.call('ZSCORE', lock, 'i')) then
    redis.call('ZADD', lock, string.format('-%d', 3e14 + now_ms), 'i')
  end
  return free, reply
end
