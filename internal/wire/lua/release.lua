-- release: give a slot back, or leave the line; grant what is free now, and call
-- parked work. It removes only members of this body.
--
-- KEYS[1] lock
-- ARGV[1] body        <token>|<owner>|<note> of the holder or waiter
-- ARGV[2] inbound=0   how many called and waiting entries there should be; 0: call nobody
-- ARGV[3] limit=1     slots of this lock, as the releaser sees it; 0: it is paused
-- ARGV[4] cooldown=0  close the gate for so long from now (ms); 0: leave it
-- ARGV[5] life=1000   how long a called note may take to arrive (ms)
-- ARGV[6] unused=0    1: the holder did not start; if nobody has started since, its start is
--                     refunded to the rate; 0: it started
--
-- Trailing arguments equal to their default (after =) may be omitted.
--
-- reply held:   slots free now (0 and up)
-- reply absent: -1 - slots free now
-- reply calls:  {one of these, parked, until the first deadline or the gate opens (ms, -1: neither), called note, ...}
-- reply grants: {one of these three, message, ...}
--
-- The messages of grants to waiters with the body's own channel are in the reply, and are not
-- published: the same process reads the reply.
--
-- A holder that is still stored counts as held even if its deadline has just passed, since
-- nobody else got the slot. Its own process decides by its own clock whether it is lost.
local lock, body = KEYS[1], ARGV[1]
local taker = redis.call('MGET', lock)[1] -- see form, and ReleaseStringScript
if taker == body and not ARGV[4] then
  redis.call('DEL', lock) -- nothing to purge, nobody to grant
  return tonumber(ARGV[3] or 1)
end
local limit, cooldown = tonumber(ARGV[3] or 1), tonumber(ARGV[4] or 0)
if taker and taker ~= body then
  return -1 - math.max(0, limit - 1) -- somebody else has one slot
end

local size = taker and 2 or redis.call('ZCARD', lock)
if size == 0 then
  return -1 - limit
end
-- ZRANK only to see whether it is there: ZSCORE would print the score.
if not taker and size == 2 and cooldown == 0 and redis.call('ZRANK', lock, 'h:' .. body) then
  -- Alone (the holder and the fence): nothing to purge, nobody to grant.
  redis.call('DEL', lock)
  return limit
end
--@include clock

--@include deadline

--@include form

if taker then
  widen(string_holder())
end
--@include line
--@include calls

own = string.match(body, '^[^.]*')
if cooldown > 0 and redis.call('ZRANK', lock, 'h:' .. body) then
  keep_key(cooldown)
end
local held = redis.call('ZREM', lock, 'h:' .. body) == 1
moved = held or redis.call('ZREM', lock, 'e:' .. body, 'd:' .. body) > 0 -- no holder is in line
-- The first member among gate, holders and line of a mutex whose holder was just removed is
-- usually the head of the line. Then there is no other holder and no gate.
local head = held and limit == 1 and cooldown == 0 and redis.call('ZRANGEBYSCORE', lock, '1e9', '(4e15', 'LIMIT', '0', '1')[1]
local free
if head and string.sub(head, 1, 2) == 'e:' then
  free = grant(0, head)
else
  local others = holders()
  if held and cooldown > 0 then
    close_gate('cooldown', cooldown * 1000)
  elseif held and (ARGV[6] or 0) == '1' then
    refund(body)
  end
  free = grant(others)
end
local code = held and free or -1 - free
local inbound = tonumber(ARGV[2] or 0)
if free == 0 and not held or opens > now_us + 1000000 then
  inbound = 0 -- no slot came free, or the gate is closed for long: a call would be in vain
end
local reply = calls(code, free, inbound, tonumber(ARGV[5] or 1000), held) or code
if reply == code and (free == limit or gate > 0) then
  tidy()
end
if reply == code and held and cooldown > 0 then
  shorten()
end
if told then
  told[1] = reply
  return told
end
return reply
