-- order_ask: a task of an ordered key has come to a worker. Take the lock if the task is the head, or wait
-- for its turn in the worker, or park.
--
-- KEYS[1] lock
-- ARGV[1] body     <token>|<owner>|<note> of the asker; the note is the task's
-- ARGV[2] keep     the asker's lease + 1000 (ms)
-- ARGV[3] stay     life of a waiting member without another ask (ms); 0: do not wait
-- ARGV[4] limit    1, or 0 while the lock is paused
-- ARGV[5] park     1: park if the lock is not given; 2: so, if the head is away; 0: do not park
-- ARGV[6] every    a rate, see ask (us)
-- ARGV[7] spare    of that rate (us)
-- ARGV[8] nonce    of the stamp of <note>; ~ and its hash for a task without one
-- ARGV[9] ticket   of the stamp (us); 0 for a task without one
-- ARGV[10] retried  how many attempts asynq has counted
-- ARGV[11] allowed  how often the caller lets the task be retried; -1: not known, asynq ends the task itself
-- ARGV[12] continue 1: a task that ends archived leaves the order; 0: its key is held
-- ARGV[13] again    1: run the task although it is marked as done
--
-- reply done:   {'done'}: the task was done before; its redelivery must not run
-- reply spent:  {'spent'}: its last attempt did begin, and did not return: the caller has asynq archive it
-- The others are those of ask. A task that is behind others names the head, as its member o:<...>, if
-- nobody holds the lock. An ask may be sent again: an asker that holds the lock is told so.
--
-- An arrival is an ask with another token than that of the waiting member. It sets the member to a state in
-- which it is not called, and a hold ends. A task without a member joins at its own ticket, or at the end.
local lock, body, limit = KEYS[1], ARGV[1], math.min(1, tonumber(ARGV[4]))
local lease, stay, park = ARGV[2] - 1000, tonumber(ARGV[3]), ARGV[5] == '1'
--@include clock

--@include deadline

--@include form

local taker, left = string_holder()
if taker then
  widen(taker, left)
end
--@include line
--@include order
--@include order_turn

local held, holder, deadline = holders()
set_rate(tonumber(ARGV[6]), tonumber(ARGV[7]))
local nonce, ticket, retried, allowed = ARGV[8], tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11])
local token, owner, note = string.match(body, '^([^|]*)|([^|]*)|(.*)$')

-- 1. The asker holds the lock already: its ask was sent again, or the lock was granted meanwhile.
local stored = redis.call('ZSCORE', lock, 'h:' .. body)
if stored then
  keep_key(lease)
  if math.ceil(now_us / 1000) + lease > tonumber(stored) then
    redis.call('ZADD', lock, deadline_score(lease, stored), 'h:' .. body)
  end
  return raise_fence()
end

-- 2. Refused before: the same ask was sent again.
local may_be_spent = allowed >= 0 and retried > allowed
if may_be_spent and redis.call('ZSCORE', lock, 's:' .. token) then
  return {'spent'}
end

-- 3. Done before. A member that is left of it, by a stamp that was sent twice, leaves.
local task = find_order(nonce, ticket)
if ARGV[13] == '1' then
  redis.call('ZREM', lock, 'n:' .. nonce)
elseif redis.call('ZSCORE', lock, 'n:' .. nonce) then
  if task then
    remove_order(task)
  end
  return {'done'}
end

-- 4. The member arrives.
local waited = task and task.state == 'w' and task.token == token
local was, since = task and task.state, task and task.since
local ticket_was_kept, ended = task ~= nil, false
if not task then
  if ticket == 0 then
    ticket = next_ticket()
    begin_order(ticket)
    redis.call('ZADD', lock, string.format('-%d', 7e15 + ticket), 'u:' .. nonce)
  else
    begin_order(ticket)
  end
  task = new_order(nonce, ticket, note)
  ended = has_ended(nonce, retried, may_be_spent)
end
if not waited then
  redis.call('ZREM', lock, 'p:' .. note, 'l:' .. note) -- of a time when the key was not ordered
end
-- An ask that arrives late, or was sent again, does not take back what a later one has said.
task.seen, task.retried = string.format('%d', now_at), string.format('%d', math.max(retried, tonumber(task.retried) or 0))
local same_note = noted(body, note)
if ended or not waited and not same_note and may_be_spent and task.begun == task.retried then
  task.begun = string.format('%d', retried + 1)
  if ARGV[12] == '1' then
    leave_order(task, 'ended')
  else
    hold_order(task)
  end
  mark_spent(token)
  keep_order()
  return {'spent'}
end

-- 5. The head gets a free lock.
local place = redis.call('ZCOUNT', lock, '(8e15', '(' .. order_score(task.ticket))
local closed = opens > now_us
local inline = math.max(0, math.floor((now_at - task.ticket) / 1000))
local called = was == 'c' and math.max(0, now_ms - since) or -1
if place == 0 and held < limit and not closed then
  task.state, task.since, task.token, task.owner, task.begun = 'a', '', token, '', string.format('%d', math.max(retried + 1, tonumber(task.begun) or 0))
  put_order(task)
  keep_order()
  keep_key(lease)
  local free_since = redis.call('ZSCORE', lock, 'i')
  redis.call('ZREM', lock, 'i')
  local fence = take_slot(body, lease)
  if was ~= 'p' and was ~= 'c' then
    return fence
  end
  return {fence, inline, called, free_since and now_ms + free_since + 3e14 or 0, redis.call('ZCOUNT', lock, '(' .. order_score(task.ticket), '+inf')}
end

-- 6. Not its turn: wait, park, or neither. An earlier run of this task holds the lock: the member stays that run's.
-- The head is away if it is held, or was here and comes back by itself: nobody waits for it in a worker.
local parked = 0
if ARGV[5] == '2' and place > 0 and held == 0 then
  park = string.find(heads('1')[1].state, '[ah]') ~= nil
end
if same_note then
  task.state, task.since, task.owner = 'a', '', ''
elseif park then
  task.state, task.since, task.token, task.owner, parked = 'p', '', '', '', 1
elseif stay > 0 then
  task.state, task.since, task.token, task.owner = 'w', string.format('%d', stay), token, owner
else
  task.state, task.since, task.token, task.owner = 'a', '', '', ''
end
put_order(task)
keep_order()
local wait = -1
local held_now, holder_now, deadline_now = held, holder, deadline
if held < limit then
  advance(0, false) -- the head may wait for a message that was lost
  held_now, holder_now, deadline_now = holders()
end
local why, closed_for = closed_by()
if same_note or held_now > 0 and why ~= 'closed' then
  why = nil
end
if same_note then
  holder_now = same_note
elseif why then
  holder_now = string.format('g:%s %d', why, closed_for)
elseif held_now == 0 and place > 0 then
  holder_now = heads('1')[1].name
end
if why then
  wait = math.max(1, math.ceil(closed_for / 1000))
elseif deadline_now then
  wait = math.max(1, math.ceil(deadline_now - now_ms))
end
if park or was == 'p' or was == 'c' then
  return {now_us, wait, place, holder_now or '', inline, called, redis.call('ZCOUNT', lock, '(8e15', '+inf') - 1, parked,
    taken_at(holder_now or '', deadline_now, -(redis.call('ZSCORE', lock, 'f') or 0) - 1e15)}
end
return {now_us, wait, place, holder_now or ''}
