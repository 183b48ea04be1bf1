-- order_act: look after an ordered key, and change one member if asked to.
--
-- KEYS[1] lock
-- ARGV[1] limit    1, or 0 while the lock is paused
-- ARGV[2] inbound  how many called and waiting tasks there should be; 0: call nobody
-- ARGV[3] act      on the task with <note>. none: only look after the key
--                  of a look at the task in asynq, which changes nothing if the member's state or seen is no
--                  longer what it was:
--                  gone: asynq has no such task; archived: key is held; left: archived, or completed, and the
--                  next one runs; present: asynq has it, and it comes by itself
--                  of the producer: confirm: it is enqueued; refused: it is not. If a copy of that command lands
--                  later, the task does not run
--                  of a worker: withdraw: the task is one of another key now
--                  of an operator: skip: the head leaves the order, if it is the task that the operator saw: that of
--                  <note> and ticket. A skip that was sent before is answered as if nobody had
-- ARGV[4] nonce    of the member of <note>; for skip: empty
-- ARGV[5] ticket   of the member (us); 0: not known
-- ARGV[6] state    of <note> that the look was at
-- ARGV[7] seen     of <note> that the look was at (us)
-- ARGV[8] after    for present: do not look again before that (ms)
-- ARGV[9] note     <note> of the task
--
-- reply calls:   {slots free now, parked and waiting, until the first deadline or the gate opens (ms, -1: neither), named, ...}
-- reply nothing: slots free now; nobody is kept waiting
-- reply grants:  {one of these, message, ...}, as release; never from here: no channel is the caller's own
-- reply runs:    {'runs'}: the head holds the lock, so it is not skipped
-- reply other:   {'other', note of the head, or empty}: the task is not the head, so it is not skipped
--
-- A named task is |c|<state>|<nonce>|<ticket>|<seen>|<note> to call: it is parked, and its turn is near. With l in place
-- of c it is the head, nobody holds the lock, and it is to be looked for: it should have come by now.
local lock, limit = KEYS[1], math.min(1, tonumber(ARGV[1]))
local act, nonce, ticket = ARGV[3], ARGV[4], tonumber(ARGV[5])
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

holders()
local task
if act == 'skip' then
  task = heads('1')[1]
  if task and task.note == ARGV[9] and task.ticket == ticket then
    if runs(task) then
      return {'runs'}
    end
    leave_order(task, 'unknown')
    mark_skipped(ticket)
  elseif not was_skipped(ticket) then
    return {'other', task and task.note or ''}
  end
elseif act ~= 'none' then
  task = find_order(nonce, ticket)
end
if act == 'withdraw' or act == 'refused' then
  if task then
    remove_order(task)
  end
  if act == 'refused' then
    mark_done(nonce)
  end
elseif act == 'confirm' and (task and task.state == 'i' or not task and not redis.call('ZSCORE', lock, 'n:' .. nonce) and not redis.call('ZSCORE', lock, 'k:' .. nonce)) then
  if not task then
    task = new_order(nonce, ticket, ARGV[9])
    begin_order(ticket)
  end
  task.state, task.seen, task.since = 'a', string.format('%d', now_at), string.format('%d', now_ms + 5000)
  put_order(task)
elseif task and task.seen == ARGV[7] and (task.state == ARGV[6] or task.state == 'c' and ARGV[6] == 'p') and not runs(task) then
  if act == 'gone' and task.state ~= 'h' and (task.state ~= 'i' or due(task)) then
    remove_order(task)
  elseif act == 'archived' then
    task.begun = '' -- what comes now is an operator's run
    hold_order(task)
  elseif act == 'left' then
    leave_order(task)
  elseif act == 'present' and task.state ~= 'h' then
    local age = task.seen == '' and 0 or math.floor((now_at - task.seen) / 1000)
    if task.state == 'i' then
      task.seen = string.format('%d', now_at)
    end
    if task.state ~= 'a' then
      task.state, task.token, task.owner = 'a', '', ''
    end -- else its run may have lost the lock, and be done: that release has this token
    task.since = string.format('%d', now_ms + math.max(tonumber(ARGV[8]), math.min(60000, math.max(5000, age))))
    put_order(task)
  end
end
local free, reply = advance(tonumber(ARGV[2]), false)
if redis.call('EXISTS', lock) == 1 then
  keep_order()
end
if reply then
  table.insert(reply, 1, free)
  return reply
end
return free
