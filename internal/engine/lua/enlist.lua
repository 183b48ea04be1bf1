-- enlist: a task is about to be enqueued. If others are parked, its note parks behind them.
--
-- KEYS: see head
-- ARGV[1] note of the task
--
-- reply place, from 1 on; 0: nothing is parked. Sent twice, the note stays where it is
local limit, note = nil, ARGV[1]
local w = redis.call('GET', KEYS[1])
if string.sub(w or '', 1, 1) ~= '+' or redis.call('EXISTS', KEYS[4]) == 0 then return 0 end
--@include head
local ms = parked_for
--@include keep
call('ZADD', parked, 'NX', int(now_us), note)
--@include write
return call('ZCARD', line) + call('ZRANK', parked, note) + 1
