-- order: what the scripts of ordered keys share. A section, after head. limit is 1, or 0 while the lock is paused.
--
-- KEYS[7] order: nonce of a task's stamp -> ticket, Redis' time of the stamp (us). The lowest is the head, whatever
-- its state; only the head is given the lock. A nonce with ~ is no stamp's: a plain client enqueued the task, which
-- joined at its arrival.
--
-- "o:<nonce>" in K:info is the record: "<state> <seen> <begun> <retried> <since> <token>|<owner>|<note>"; 0 and
-- nothing: none
--   state  i  stamped, not seen yet. since: how long others wait before they look for it (ms)
--          a  seen in asynq, comes by itself; token|owner: of its last grant. since: when to look again (ms)
--          w  waits in a worker, as token|<lease to grant> <cost> <owner>|note. since: how long after seen it counts
--             as alive (ms)
--          p  parked; c  called, since then (ms); h  held since then (ms): asynq has archived it, and the key stands
--   seen   when it last arrived or was confirmed (us). A look acts only if it is unchanged
--   begun  retried + 1 of the last grant after which the handler began, or may have
--   retried  asynq's count of attempts when it last asked
--
-- KEYS[8] marks: until when each is kept (ms), five minutes
--   done:<nonce>     was done, or refused for its ID; what is delivered of it does not run
--   left:<nonce>     left the order otherwise; no late confirm brings it back
--   refused:<token>  that arrival was refused, and its ask, sent again, is too
--   ended:<nonce>|<begun>, unknown:<nonce>|<begun>  it left after a run: its last one; one whose end nobody saw
--   skipped:<ticket> an operator skipped that task
local free, moved, nobody = 0, false, false
local order_look = 5000 -- ms

local function parse_task(nonce, ticket, record)
  local task = {nonce = nonce, ticket = tonumber(ticket), stored = true}
  task.state, task.seen, task.begun, task.retried, task.since, task.token, task.owner, task.note =
    string.match(record, '^(%l) (%d+) (%d+) (%d+) (%d+) ([^|]*)|([^|]*)|(.*)$')
  task.seen, task.begun = tonumber(task.seen), tonumber(task.begun)
  task.retried, task.since = tonumber(task.retried), tonumber(task.since)
  return task
end

local function record_of(task)
  return table.concat({
    task.state, int(task.seen), int(task.begun), int(task.retried), int(task.since), task.token,
  }, ' ') ..
    '|' .. task.owner .. '|' .. task.note -- not by string.format, which ends a text at its first zero byte
end

local function new_task(nonce, ticket, note)
  local task = parse_task(nonce, ticket, 'a 0 0 0 0 ||' .. note)
  task.stored = false
  return task
end

local function find_task(nonce)
  local record = call('HGET', info, 'o:' .. nonce)
  local ticket = record and call('ZSCORE', order, nonce)
  return ticket and parse_task(nonce, ticket, record) or nil
end

local function put_task(task)
  if not task.stored then
    local ms = month
    --@include keep
    call('ZADD', order, int(task.ticket), task.nonce)
    if not ordered then ordered, changed = true, true end
    if call('ZCARD', order) == 1 then call('PEXPIREAT', order, int(good)) end
    task.stored = true
  end
  call('HSET', info, 'o:' .. task.nonce, record_of(task))
end

local function remove_task(task)
  if task.stored then
    call('ZREM', order, task.nonce)
    call('HDEL', info, 'o:' .. task.nonce)
  end
end

-- run_of: the holder that is a run of the task, or nil
local function run_of(task)
  local body = table.concat({task.token, task.owner, task.note}, '|')
  return holds(body) and body or nil
end

local function first_tasks(most)
  local found, fields, tasks = call('ZRANGE', order, '0', int(most - 1), 'WITHSCORES'), {}, {}
  for i = 1, #found, 2 do fields[#fields + 1] = 'o:' .. found[i] end
  if #fields > 0 then
    for i, record in ipairs(call('HMGET', info, unpack(fields))) do
      tasks[i] = parse_task(found[i * 2 - 1], found[i * 2], record or 'a 0 0 0 0 ||')
    end
  end
  return tasks
end
