-- pool_release: give a value back, or consume it, or leave the line; then grant free values to
-- waiters. It never touches what another taker has: a value that was taken again meanwhile stays
-- with its new taker.
--
-- KEYS[1] pool
-- ARGV[1] body     <token>|<owner>|<note> of the taker or waiter
-- ARGV[2] consume  <value> that leaves the pool for good; if the taker has another value, or
--                  consume is empty, the value that it has is free again
--
-- reply held:   values free now (0 and up)
-- reply absent: -1 - values free now
-- The caller names the value to consume, because a take of the same body that arrived late may
-- have got another value.
local pool, body, consume = KEYS[1], ARGV[1], ARGV[2]
--@include clock

--@include pool_line

redis.call('ZREM', pool, 'e:' .. body, 'd:' .. body) -- before taken, which adds: see purge
local value = taken(body)
if value then
  drop(value, body)
  if value == consume then
    redis.call('ZREM', pool, 't:' .. value)
  else
    put(value)
  end
end
purge()
local free = grant()
settle()
return value and free or -1 - free
