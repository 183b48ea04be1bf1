-- ask: take a slot of the lock, or join its line, or stay in it, or park in it.
--
-- KEYS: see head; in a pool KEYS[7] is values
-- ARGV[1] body     <token>|<owner>|<note> of the asker; token: <channel>.<nonce>[.<arrival>]
-- ARGV[2] lease    how long it wants the lock (ms)
-- ARGV[3] stay=0   how long its place in line lives without another ask (ms); 0: it does not join
-- ARGV[4] grant=lease  how long a lease a release grants it (ms)
-- ARGV[5] limit=1  slots; 0: paused, nobody gets one
-- ARGV[6] park=0   1: without a slot its note parks, in the asker's place
-- ARGV[7] notes=0  1: no two holders of this lock have the same note, from now on
-- ARGV[8] known=0  when the asker's process has read the orders of operators (us of their node)
-- ARGV[9] every=0  a rate: from one start to the next (us); 0: none
-- ARGV[10] spare=0  how much of it can be saved up (us)
-- ARGV[11] ticket=0  with no slots: of the asker, which may give a grant back (us); 0: none
-- ARGV[12] borrows=0  1: it brings one slot more, for itself alone
-- ARGV[13] cost=1  for how many starts of the rate it counts
--
-- reply yours:    fence; in a pool {fence, value}
-- reply returned, yours: {fence, in line for (ms), called ago (ms, -1: not), notes parked}: its note was parked
-- reply busy:     {now (us), wait (ms), place, named}
-- reply returned, busy: those four, and {in line for (ms), called ago (ms), notes parked, parked (1 or 0)}
--
-- wait: until the first deadline, or the gate opens; -1: neither; 0: the script has stopped at its bound, ask again.
-- place: how many come before. named: a holder's body, first one with the asker's note; or "g:<reason> <for (us)>", the
-- gate that keeps the asker out. An ask that is sent twice takes nothing twice.
local body, lease = ARGV[1], ARGV[2]
local limit, park, every_wanted = tonumber(ARGV[5] or 1), ARGV[6] == '1', ARGV[9] or '0'

-- Thin: nobody is there, or the asker alone; or it only tries, and somebody is.
local w = redis.call('GET', KEYS[1])
local only_try = (ARGV[3] or '0') == '0' and not park
-- A word without a '|' is none of a lock: head says so.
local is_thin = w and string.sub(w, 1, 1) ~= '+' and string.find(w, '|', 1, true)
local none = not w and redis.call('EXISTS', KEYS[6]) == 0
local takes = none and limit > 0 and every_wanted == '0' and not KEYS[7]
local borrows, cost = ARGV[12] == '1', tonumber(ARGV[13] or 1)
local refused = only_try and w ~= body and every_wanted == '0' and not borrows
  and (is_thin and limit <= 1 or none and (limit == 0 or KEYS[7]))
if takes or w == body and limit > 0 or refused then
  local left = takes and 0 or redis.call('PTTL', KEYS[1])
  if takes then
    redis.call('SET', KEYS[1], body, 'PX', lease)
  elseif w == body then
    redis.call('PEXPIRE', KEYS[1], math.max(left, lease))
  end
  local time = redis.call('TIME')
  local now_us = time[1] * 1000000 + time[2]
  if takes or w == body then return now_us end
  return {now_us, w and math.max(1, left) or -1, 0, w or ''}
end
--@include head
lease = tonumber(lease)
local stay = tonumber(ARGV[3] or 0)
local every_now, spare_now, known_now = tonumber(every_wanted), tonumber(ARGV[10] or 0), tonumber(ARGV[8] or 0)
--@include rate
if ARGV[7] == '1' and not noted then
  noted, changed = true, true
  local all = count > 1 and call('ZRANGEBYSCORE', holders, '(' .. int(now_ms), '+inf') or {} -- once in a lock's life
  for _, one in ipairs(all) do call('HSET', info, 'n:' .. note_of(one), string.match(one, '^[^|]*|[^|]*')) end
end

-- 1. The asker holds the lock. One that knows of a pause gives it back, and is in line where it was.
local token, moved = token_of(body), false
local held = holds(body)
if held and limit == 0 then
  --@include leave
  leave(body)
  moved = true
elseif held then
  local ms = lease
  --@include keep
  call('ZADD', holders, 'GT', int(now_ms + lease + 1), body)
  changed = true -- always a write, for MinReplicas
  fence = math.max(now_us, fence + 1) -- that of a lock which was thin is by its holder's clock
  --@include write
  return values and {fence, call('HGET', info, 'v:' .. token)} or fence
end

local note = note_of(body)
local ticket = parks and call('ZSCORE', parked, note) -- of a note that is parked, or was called
local was_parked, inline, called_ago = ticket, 0, -1
local at, total = tonumber((noted or park) and call('ZSCORE', line, token) or 0)
if noted and at > aside then
  --@include twin
  if not twin(body) then call('ZADD', line, int(at % aside), token) end
end

-- 2. A slot is free: waiters come first, and the asker may be one of them.
local same, stopped, its_fence, pool_value
--@include free
if free > 0 then
  local asker, costs = body, cost
  --@include send
  --@include grant
  its_fence, pool_value, stopped = mine, its_value, more
end
if moved and not its_fence then
  local found = call('ZRANGEBYSCORE', holders, '(' .. int(now_ms), '+inf', 'WITHSCORES', 'LIMIT', '0', '1')
  first, deadline = found[1], tonumber(found[2])
end
if noted and not its_fence then
  --@include twin
  same = twin(body)
end
if borrows and not its_fence and limit > 0 and opens <= now_us and not same then
  local length, value = lease, nil
  leave_line(token)
  --@include hold
  its_fence = fence
end
if its_fence then
  if ticket then
    --@include unpark
  end
  --@include write
  if ticket then return {its_fence, inline, called_ago, total - call('ZCARD', called)} end
  return pool_value and {its_fence, pool_value} or its_fence
end

-- 3. Busy. What keeps the asker out?
local named, wait = same or first or '', stopped and 0 or deadline and deadline - now_ms or -1
--@include shut

-- 4. Park, or join the line or stay in it, or neither.
local place, has_parked = 0, 0
ticket = ticket or ARGV[11] ~= '0' and tonumber(ARGV[11] or nil) or nil
if park then
  if at > 0 then
    ticket = at % aside
    leave_line(token)
  end
  ticket = ticket or now_us
  if was_parked then
    --@include unpark
  end
  inline = ms_since(ticket)
  place = call('ZCARD', line)
  if not same then -- beside a run with its own note nothing parks
    local ms = parked_for
    --@include keep
    if not parks then parks, changed = true, true end
    call('ZADD', parked, int(ticket), note)
    total = call('ZCARD', parked)
    if total == 1 then call('PEXPIREAT', parked, int(good)) end
    place, has_parked = place + call('ZRANK', parked, note), 1
  end
elseif stay > 0 then
  local ms = stay
  --@include keep
  local stands = same and limit ~= 1
  local new = call('ZADD', line, 'NX', int((ticket or now_us) + (stands and aside or 0)), token) == 1
  call('HSET', info, token, int(now_ms + stay) .. ' ' .. (ARGV[4] or ARGV[2])
    .. ' ' .. (ARGV[13] or 1) .. ' ' .. string.sub(body, #token + 2))
  if stands then call('HSET', info, 'a:' .. note, token) end
  place = call('ZRANK', line, token)
  -- Dead waiters in front leave, 25 at most with each ask: the first looks when the holder's lease ends.
  for _ = 1, math.min(place, 25) do
    local head = call('ZRANGE', line, '0', '0')[1]
    if tonumber(string.match(call('HGET', info, head) or '0', '^%d+')) > now_ms then break end
    leave_line(head)
    place = place - 1
  end
  if new and place == 0 then call('PEXPIREAT', line, int(good)) end
  if was_parked then
    --@include unpark
  end
else
  place = call('ZCARD', line)
end
--@include write
if was_parked or park then
  total = (total or call('ZCARD', parked)) - call('ZCARD', called)
  return {now_us, wait, place, named, inline, called_ago, total, has_parked}
end
return {now_us, wait, place, named}
