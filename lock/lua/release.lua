-- release: give a slot back, or leave the line; grant what is free now, and call
-- parked work. Harmless to anybody else: only this body's own members go.
--
-- KEYS[1] lock
-- ARGV[1] body        <token>|<owner>|<note> of the holder or waiter
-- ARGV[2] inbound=0   how many called and waiting ones there are to be; 0: call nobody
-- ARGV[3] limit=1     slots of this lock, as the releaser sees it; 0: it is paused
-- ARGV[4] cooldown=0  close the gate for so long from now (ms); 0: leave it
-- ARGV[5] life=1000   how long a called one may take to come (ms)
-- ARGV[6] unused=0    the fence of a holder that did not start (us; 1: not known), whose start
--                     is given back to the rate; 0: it started
--
-- Arguments at the end that are what the header has after = may be left out.
--
-- reply held:   slots free now (0 and up)
-- reply absent: -1 - slots free now
-- reply calls:  {one of these, parked, until the first deadline (ms, -1: no holder), called note, ...}
-- reply grants: {one of these three, message, ...}; the last message is "more" where
--               dropping dead waiters was cut short: look after the lock at once
--
-- Whoever was granted a slot and has the body's own wake channel is told by that
-- reply, in the words of a message, and not by one: its process reads the reply.
--
-- A holder still stored was nobody else's meanwhile, so it counts as held even
-- if its deadline has just passed; its own process judges that by its clock.
local lock, body = KEYS[1], ARGV[1]
local taker = redis.call('MGET', lock)[1] -- see form
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
  keep(cooldown)
end
local held = redis.call('ZREM', lock, 'h:' .. body) == 1
if not held then
  redis.call('ZREM', lock, 'e:' .. body, 'd:' .. body) -- no holder is in line
end
moved = held
-- Of what was a mutex until now, the first of gate, holders and line is most likely
-- the head of the line; then nobody holds it any more, and there is no gate.
local head = held and limit == 1 and cooldown == 0 and redis.call('ZRANGEBYSCORE', lock, '1e9', '(4e15', 'LIMIT', '0', '1')[1]
local free, more, _
if head and string.sub(head, 1, 2) == 'e:' then
  free, _, more = grant(0, head)
else
  local others = holders()
  if held and cooldown > 0 then
    close_gate('cooldown', cooldown * 1000)
  elseif held and ARGV[6] then
    give_back(tonumber(ARGV[6] or 0))
  end
  free, _, more = grant(others)
end
local code = held and free or -1 - free
local inbound = tonumber(ARGV[2] or 0)
if free == 0 and not held or gate and opens > now_us + 1000000 then
  inbound = 0 -- no slot came free, or the gate is closed for long: what is called now would come in vain
end
local reply = calls(code, free, inbound, tonumber(ARGV[5] or 1000), held) or code
if reply == code and (free == limit or gate) then
  tidy()
end
if reply == code and held and cooldown > 0 then
  shorten()
end
if more then
  told = told or {false}
  told[#told + 1] = 'more'
end
if told then
  told[1] = reply
  return told
end
return reply
