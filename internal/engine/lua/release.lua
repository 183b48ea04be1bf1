-- release: give a slot back, or leave the line; grant what is free now, and call parked notes.
--
-- KEYS: see head
-- ARGV[1] body        <token>|<owner>|<note> of the holder or waiter
-- ARGV[2] limit=1     slots; 0: paused
-- ARGV[3] inbound=0   how many called and waiting ones there should be; 0: call nobody
-- ARGV[4] life=1000   how long a called note may take to come (ms)
-- ARGV[5] cooldown=0  close the gate for so long (ms)
-- ARGV[6] lend=0      workers that calls may borrow
-- ARGV[7] consume     in a pool: the value that leaves it for good, if the holder has it
--
-- reply held:   slots free now
-- reply absent: -1 - slots free now
-- reply calls:  {one of these, notes not called, ...}, see calls
-- reply grants: {one of these three, message, ...}: to the releaser's own channel, not published
--
local body, limit, cooldown = ARGV[1], tonumber(ARGV[2] or 1), ARGV[5] or '0'
local w = redis.call('GET', KEYS[1])
if w == body and cooldown == '0' then
  redis.call('DEL', KEYS[1])
  return limit
elseif not w and redis.call('EXISTS', KEYS[6]) == 0 then
  return -1 - limit
elseif w and w ~= body and string.sub(w, 1, 1) ~= '+' then
  return -1 - math.max(0, limit - 1)
end
--@include head
local was = holds(body)
-- The only holder of a mutex leaves after the next came: so the key keeps its TTL. Neither has a field for its note.
local late = was and limit == 1 and count == 1 and not values and cooldown == '0'
if was and not late then
  --@include leave
  leave(body, ARGV[7])
end
--@include send
own = string.match(body, '^[^.]*')
local moved, asker, lease = was
--@include free
local notes = noted
if late then free, noted = 1, false end
if not was then
  moved = leave_line(token_of(body))
elseif cooldown ~= '0' then
  local why, at = 'cooldown', math.max(gates.cooldown or 0, now_us + cooldown * 1000)
  --@include move
end
--@include grant
if late then
  call('ZREM', holders, body)
  count, noted = count - 1, notes
  if noted then call('HDEL', info, 'n:' .. note_of(body), 'a:' .. note_of(body)) end
end
local reply = was and free or -1 - free
if parks then
  local inbound, life = (was or free > 0) and tonumber(ARGV[3] or 0) or 0, tonumber(ARGV[4] or 1000)
  local lend = tonumber(ARGV[6] or 0)
  --@include calls
end
--@include settle
if told then
  told[1] = reply
  return told
end
return reply
