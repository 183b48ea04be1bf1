-- close: close the gate: nobody starts for a time. Never opens it sooner. The holder goes on.
--
-- KEYS: see head
-- ARGV[1] body    of the holder
-- ARGV[2] length  for how long (ms)
--
-- reply 1: closed; 0: it does not hold the lock
local body, limit = ARGV[1], 2
local w = redis.call('GET', KEYS[1])
if w ~= body and string.sub(w or '', 1, 1) ~= '+' then return 0 end
--@include head
local was = holds(body)
if was then
  local why, at = 'closed', math.max(gates.closed or 0, now_us + ARGV[2] * 1000)
  --@include move
end
--@include write
return was and 1 or 0
