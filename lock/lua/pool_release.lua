-- pool_release: give a value back, or consume it, or leave the line; and grant
-- what is free now. Harmless to anybody else: a value that has another taker
-- meanwhile stays with that one.
--
-- KEYS[1] pool
-- ARGV[1] body     <token>|<owner>|<note> of the taker or waiter
-- ARGV[2] consume  1: the value leaves the pool for good; 0: it is free again
--
-- reply held:   values free now (0 and up)
-- reply absent: -1 - values free now
local pool, body = KEYS[1], ARGV[1]
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]

--@include pool_line

local value = taken(body)
if value then
  drop(value, body)
  if ARGV[2] == '1' then
    redis.call('ZREM', pool, 't:' .. value)
  else
    put(value)
  end
end
redis.call('ZREM', pool, 'e:' .. body, 'd:' .. body)
purge()
local free = grant()
settle()
if value then
  return free
end
return -1 - free
