-- sweep: remove what is dead: holders whose lease has ended, waiters that have not asked for too long, 100 of each a
-- call.
--
-- KEYS 1 to 6    word, holders, line, parked, called, info; in a pool KEYS[7] values; in others KEYS 7 and 8 order,
-- marks
-- ARGV[1] limit  slots; 0: paused
-- ARGV[2] from   how many live waiters were looked at before
--
-- reply {holders and waiters removed, live waiters looked at; 1: call again with those, else 0}
local limit, from = tonumber(ARGV[1]), tonumber(ARGV[2])
local w = redis.call('GET', KEYS[1])
-- A thin one expires by itself.
if not w and redis.call('EXISTS', KEYS[6]) == 0 or w and string.sub(w, 1, 1) ~= '+' then return {0, 0, 0} end
local before = redis.call('ZCARD', KEYS[2])
--@include head
local own, told
local holding = call('ZCARD', holders)
local removed = before - holding
local tokens = call('ZRANGE', line, int(from), int(from + 99))
for _, token in ipairs(tokens) do
  local till = string.match(call('HGET', info, token) or '', '^%d+')
  if till and tonumber(till) > now_ms then
    from = from + 1
  else
    call('ZREM', line, token)
    call('HDEL', info, token)
    removed = removed + 1
  end
end
local free, moved, asker, lease = math.max(0, limit - count), removed > 0, nil, nil
if values and limit > 0 then free = call('ZCARD', values) end
local again = (#tokens == 100 or holding > count) and 1 or 0
--@include grant
--@include settle
return {removed, from, again}
