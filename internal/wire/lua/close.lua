-- close: close the gate: nobody starts for a time. Never opens it sooner. The holder, which
-- closed it, goes on.
--
-- KEYS[1] lock
-- ARGV[1] body    <token>|<owner>|<note> of the holder
-- ARGV[2] length  how long the gate is to be closed from now (ms)
--
-- reply 1 closed: for at least so long
-- reply 0 lost:   no such holder, or its deadline has passed
local lock, body, limit = KEYS[1], ARGV[1], 1
--@include clock

--@include deadline

--@include form

local taker, left = string_holder()
if taker and taker ~= body then
  return 0
elseif taker then
  widen(taker, left)
end
--@include line

holders()
if not redis.call('ZSCORE', lock, 'h:' .. body) then
  return 0
end
keep_key(tonumber(ARGV[2])) -- Redis may refuse it, and then nothing is to be written
redis.call('ZREM', lock, '') -- removes nothing: after it a full Redis lets the ZADD pass
close_gate('closed', ARGV[2] * 1000)
return 1
