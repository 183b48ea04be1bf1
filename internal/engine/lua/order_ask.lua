-- order_ask: a task of an ordered key has come to a worker. The head takes the lock; others wait there, or park.
--
-- KEYS: see head
-- ARGV[1] body     <token>|<owner>|<note> of the asker
-- ARGV[2] lease    how long it wants the lock (ms)
-- ARGV[3] stay     how long it waits in the worker without another ask (ms); 0: it does not wait
-- ARGV[4] limit    1; 0: paused
-- ARGV[5] park     without the lock: 1: park; 2: so, if the head is away; 0: do not
-- ARGV[6] every, ARGV[7] spare  a rate (us), see ask
-- ARGV[8] grant    how long a lease a release grants it (ms)
-- ARGV[9] nonce    of the task's stamp; ~ and its hash for a task without one
-- ARGV[10] ticket  of the stamp (us); 0 for a task without one
-- ARGV[11] retried  how many attempts asynq has counted
-- ARGV[12] allowed  how often the caller lets it be retried; -1: not known
-- ARGV[13] continue 1: a task that ends archived leaves the order; 0: its key is held
-- ARGV[14] known=0  see ask
-- ARGV[15] cost=1   for how many starts of the rate it counts
--
-- reply done:  {'done'}: its redelivery must not run
-- reply spent: {'spent'}: its last attempt did begin, and did not return: the caller has asynq archive it
-- The others are those of ask. Behind others, before whom nobody holds the lock, named is "o:<record of the head>".
local body, limit = ARGV[1], math.min(1, tonumber(ARGV[4]))
local w = redis.call('GET', KEYS[1])
--@include head
--@include order
--@include marks
local lease, stay, park = tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[5] == '1'
local nonce, retried, allowed = ARGV[9], tonumber(ARGV[11]), tonumber(ARGV[12])
local token, owner, note = string.match(body, '^([^|]*)|([^|]*)|(.*)$')
local may_be_spent = allowed >= 0 and retried > allowed

-- 1. Refused before, or done.
local is_refused, is_done = is_marked('refused:' .. token), is_marked('done:' .. nonce)
if is_refused then
  --@include finish
  return {'spent'}
end
if is_done then
  local task = find_task(nonce)
  if task then remove_task(task) end
  --@include finish
  return {'done'}
end
local every_now, spare_now, known_now = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[14] or 0)
--@include rate

-- 2. The asker holds the lock. One that knows of a pause gives it back, and keeps its place.
local gives_back = limit == 0 and holds(body)
if gives_back then
  call('ZREM', holders, body)
  local found = call('ZRANGE', holders, '0', '0', 'WITHSCORES')
  count, first, deadline = count - 1, found[1], tonumber(found[2])
elseif holds(body) then
  local ms = lease
  --@include keep
  call('ZADD', holders, 'GT', int(now_ms + lease + 1), body)
  --@include write
  return fence
end

-- 3. The task arrives.
local task = find_task(nonce)
local waited = task and task.state == 'w' and task.token == token
local was, since = task and task.state, task and task.since
local ended = false
if not task then
  task = new_task(nonce, ARGV[10] == '0' and now_us or tonumber(ARGV[10]), note)
  local trace = nonce .. '|' .. ARGV[11]
  for _, how in ipairs(may_be_spent and {'ended:', 'unknown:'} or {'ended:'}) do
    ended = ended or is_marked(how .. trace)
    call('ZREM', marks, how .. trace)
  end
end
task.seen, task.retried = now_us, math.max(retried, task.retried)
if gives_back then task.begun = 0 end
local same = run_of(task) -- an earlier run of the task
if ended or not waited and not same and may_be_spent and task.begun == task.retried then
  task.begun = retried + 1
  --@include order_leave
  if ARGV[13] == '1' then leave_order(task, 'ended') else hold_task(task) end
  mark('refused:' .. token)
  --@include finish
  return {'spent'}
end

-- 4. The head gets a free lock.
local place = task.stored and call('ZRANK', order, nonce) or call('ZCOUNT', order, '-inf', '(' .. int(task.ticket))
local inline = ms_since(task.ticket)
local called_ago = was == 'c' and math.max(0, now_ms - since) or -1
if place == 0 and count < limit and opens <= now_us then
  task.state, task.since, task.token, task.owner, task.begun = 'a', 0, token, owner, math.max(retried + 1, task.begun)
  put_task(task)
  local length, cost, value = lease, tonumber(ARGV[15] or 1), nil
  --@include hold
  --@include write
  if was ~= 'p' and was ~= 'c' then return fence end
  return {fence, inline, called_ago, call('ZCARD', order) - 1}
end

-- 5. Not its turn: wait, park, or neither. Nobody waits in a worker for a head that is away.
local parked_now = 0
local head = place > 0 and first_tasks(1)[1]
if ARGV[5] == '2' and head then park = string.find(head.state, '[ah]') and not run_of(head) end
task.token, task.owner, task.since = '', '', 0
if same then
  task.state = 'a' -- an earlier run holds the lock: the task stays that run's
  task.token, task.owner = string.match(same, '^([^|]*)|([^|]*)')
elseif park then
  task.state, parked_now = 'p', 1
elseif stay > 0 then
  task.state, task.since, task.token, task.owner = 'w', stay, token, table.concat({ARGV[8], ARGV[15] or 1, owner}, ' ')
else
  task.state = 'a'
end
put_task(task)
if count < limit then
  local inbound, ended = 0, false -- the head may wait for a message that was lost
  --@include send
  --@include advance
  deadline = count > 0 and tonumber(call('ZRANGE', holders, '0', '0', 'WITHSCORES')[2])
else
  --@include write
end
local named, wait = same or first or '', deadline and math.max(1, deadline - now_ms) or -1
if count == 0 and head then named = 'o:' .. record_of(head) end
--@include shut
if park or was == 'p' or was == 'c' then
  return {now_us, wait, place, named, inline, called_ago, call('ZCARD', order) - 1, parked_now}
end
return {now_us, wait, place, named}
