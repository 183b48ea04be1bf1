-- pool_delete: remove a pool with everything in it, and tell its takers.
--
-- KEYS[1] pool
--
-- reply values removed, taken ones included
local pool = KEYS[1]
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]

local removed = redis.call('ZCOUNT', pool, 6e15, '+inf')
for _, member in ipairs(redis.call('ZRANGEBYSCORE', pool, 1e11, 1e14)) do
  local token = string.match(member, '^h:[^|]*|([^|]*)')
  redis.pcall('PUBLISH', string.match(pool, '^[^{]*') .. string.match(token, '^[^.]*'),
    string.format('%s -1 %d', token, now_us))
  removed = removed + 1
end
redis.call('DEL', pool)
return removed
