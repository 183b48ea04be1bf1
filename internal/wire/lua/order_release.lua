-- order_release: a task of an ordered key gives the lock back, or stops waiting in its worker, and says how
-- its attempt ended. The head that waits gets the lock in the same step.
--
-- KEYS[1] lock
-- ARGV[1] body      <token>|<owner>|<note> of the holder or waiter
-- ARGV[2] inbound   how many called and waiting tasks there should be; 0: call nobody
-- ARGV[3] limit     1, or 0 while the lock is paused
-- ARGV[4] cooldown  close the gate for so long from now (ms); 0: leave it
-- ARGV[5] unused    1: the holder did not start, as in release; 0: it started
-- ARGV[6] nonce     of the stamp of <note>, see order.lua
-- ARGV[7] ticket    of its stamp (us), or 0
-- ARGV[8] outcome   of the attempt, for <note>. stays: it keeps its place, whatever happens next; unbegun: so, and it had its turn, and its
--                   handler did not begin. Who never heard of its turn says stays: that grant may be a late one, beside a run that did begin. done: it leaves, and is marked as done;
--                   held: asynq archives it, and the key stands; left: asynq archives it, and the next one runs
--
-- reply held, absent, calls, grants: as release
--
-- The outcome counts only while the member is that of this token's grant: the same release may be sent
-- again minutes later, when the task runs again.
local lock, body, limit = KEYS[1], ARGV[1], math.min(1, tonumber(ARGV[3]))
local inbound, cooldown, outcome = tonumber(ARGV[2]), tonumber(ARGV[4]), ARGV[8]
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

own = string.match(body, '^[^.]*')
local token = string.match(body, '^[^|]*')
local held = redis.call('ZREM', lock, 'h:' .. body) == 1
moved = held
holders()
if held and cooldown > 0 then
  close_gate('cooldown', cooldown * 1000)
elseif held and ARGV[5] == '1' then
  refund(body)
end
local nonce = ARGV[6]
local task = find_order(nonce, tonumber(ARGV[7]))
local mine = task and task.token == token and (task.state == 'a' or task.state == 'w')
if mine and (task.state == 'w' or outcome == 'stays' or outcome == 'unbegun') then
  if task.state == 'a' and outcome == 'unbegun' then
    task.begun = ''
  end
  task.state, task.token, task.owner, task.since = 'a', '', '', string.format('%d', now_ms + 5000)
  put_order(task)
elseif mine and outcome == 'held' then
  hold_order(task)
elseif mine and outcome == 'left' then
  leave_order(task, 'ended')
elseif mine then
  remove_order(task)
end
if outcome == 'done' and (mine or held or not task) then
  mark_done(nonce)
end
local free, reply = advance(inbound, held)
keep_order()
local code = held and free or -1 - free
if reply then
  table.insert(reply, 1, code)
else
  reply = code
end
if told then
  told[1] = reply
  return told
end
return reply
