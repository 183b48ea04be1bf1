-- fence: the fence of a holder, for which nobody but the holder is to ask. Reads only.
-- For a mutex; of a semaphore the ask and the grant tell each its own.
--
-- KEYS[1] lock
-- ARGV[1] body  <token>|<owner>|<note> of the holder
--
-- reply held:   fence
-- reply 0 lost: no such holder, or its deadline has passed
local lock, body = KEYS[1], ARGV[1]
--@include clock

local taker = redis.call('MGET', lock)[1] -- see form
if taker then
  return taker == body and now_us or 0
end
local deadline = redis.call('ZSCORE', lock, 'h:' .. body)
if not deadline or tonumber(deadline) <= math.floor(now_us / 1000) then
  return 0
end
return -redis.call('ZSCORE', lock, 'f') - 1e15
