-- sweep: remove holders whose lease has ended, and waiters that have not asked for too long, 100 of each a call.
--
-- KEYS: see head
-- ARGV[1] limit  slots; 0: paused
-- ARGV[2] from   0, or the score in K:line up to which waiters were looked at before
--
-- reply {holders and waiters removed, that score now, how many calls are left for who is there}
local limit, from = tonumber(ARGV[1]), ARGV[2]
local w = redis.call('GET', KEYS[1])
if not w and redis.call('EXISTS', KEYS[6]) == 0 or string.sub(w or '+', 1, 1) ~= '+' then return {0, from, 0} end
local before = redis.call('ZCARD', KEYS[2])
--@include head
--@include send
local holding = call('ZCARD', holders)
local removed = before - holding
local found = call('ZRANGEBYSCORE', line, '(' .. from, '+inf', 'WITHSCORES', 'LIMIT', '0', '100')
for i = 1, #found, 2 do
  local till = string.match(call('HGET', info, found[i]) or '', '^%d+')
  from = found[i + 1]
  if not till or tonumber(till) <= now_ms then
    leave_line(found[i])
    removed = removed + 1
  end
end
local left = math.ceil(math.max(holding - count, call('ZCOUNT', line, '(' .. from, '+inf')) / 100)
local moved, asker, lease = removed > 0
--@include free
--@include grant
--@include settle
return {removed, from, left}
