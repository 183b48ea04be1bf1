-- sweep: remove what is dead: holders whose lease has ended, and of the first 100 waiters those that have not asked for too long.
--
-- KEYS 1 to 6    word, holders, line, parked, called, info; in a pool KEYS[7] values; in others KEYS 7 and 8 order, marks
-- ARGV[1] limit  slots; 0: paused
--
-- reply holders and waiters removed
local limit = tonumber(ARGV[1])
local w = redis.call('GET', KEYS[1])
if not w and redis.call('EXISTS', KEYS[6]) == 0 or w and string.sub(w, 1, 1) ~= '+' then return 0 end -- a thin one expires by itself
local before = redis.call('ZCARD', KEYS[2])
--@include head
local own, told
local removed = before - call('ZCARD', holders)
for _, token in ipairs(call('ZRANGE', line, '0', '99')) do
  local till = string.match(call('HGET', info, token) or '', '^%d+')
  if not till or tonumber(till) <= now_ms then
    call('ZREM', line, token)
    call('HDEL', info, token)
    removed = removed + 1
  end
end
local free, moved, asker, lease = math.max(0, limit - count), removed > 0, nil, nil
if values and limit > 0 then free = call('ZCARD', values) end
--@include grant
--@include settle
return removed
