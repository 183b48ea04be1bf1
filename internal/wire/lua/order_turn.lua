-- order_turn: how tasks get the lock in their order, and leave. Included after line and order, never sent alone.
-- Expects: limit (1, or 0 while the lock is paused), and what line and order have.

-- new_order: a member that is in no set yet.
local function new_order(nonce, ticket, note)
  return {nonce = nonce, ticket = ticket, state = 'a', seen = '', begun = '', retried = '', since = '', token = '', owner = '', note = note}
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

-- mark_spent: the arrival with that token was refused, since its task's attempts are spent.
local function mark_spent(token)
  put_mark('s:', token)
end

-- leave_order: the task leaves the order, and is not done. If an operator runs it, it runs. how says how its last run ended, if there
-- was one: 'ended': asynq is to archive it, 'unknown': nobody has seen, nil: asynq has noted it. If asynq could not note
-- it, it counts one attempt more, and the task comes back with as many as begun says.
local function leave_order(task, how)
  if task.name then
    remove_order(task)
  end
  put_mark('k:', task.nonce)
  if how and task.begun ~= '' then
    put_mark('s:', table.concat({task.nonce, task.begun, how}, '|'))
  end
end

-- has_ended: whether the run after so many attempts was the last one of a task that has left the order since. may_be_spent: also if
-- nobody has seen how that ended.
local function has_ended(nonce, retried, may_be_spent)
  local trace = string.format('s:%s|%d|', nonce, retried)
  return redis.call('ZREM', lock, trace .. 'ended') == 1 or may_be_spent and redis.call('ZREM', lock, trace .. 'unknown') == 1
end

-- mark_skipped: an operator has skipped the task of that ticket. No ID, and no nonce of a task without a stamp, would do: both may be used again.
local function mark_skipped(ticket)
  put_mark('s:', string.format('skip|%d', ticket))
end

local function was_skipped(ticket)
  return redis.call('ZSCORE', lock, string.format('s:skip|%d', ticket))
end

-- hold_order: the task is archived, and its key stands.
local function hold_order(task)
  task.state, task.since, task.token, task.owner = 'h', string.format('%d', now_ms), '', ''
  put_order(task)
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
    if redis.call('ZCOUNT', lock, '2e15', '8e15') > 0 then
      life = math.max(life, 1800000) -- who waits, or is parked, since a time when the key was not ordered
    elseif life <= 0 then
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
