-- pool_delete: remove a pool with everything in it, and tell its takers.
--
-- KEYS[1] pool
--
-- reply deleted: {values removed, taken ones included; how many tokens of takers follow; <token>, ...}
local pool = KEYS[1]
--@include clock

local deleted = {redis.call('ZCOUNT', pool, 6e15, '+inf'), 0}
for _, member in ipairs(redis.call('ZRANGEBYSCORE', pool, 1e11, 1e14)) do
  local token = string.match(member, '^h:[^|]*|([^|]*)')
  redis.pcall('PUBLISH', string.match(pool, '^[^{]*') .. string.match(token, '^[^.]*'),
    string.format('%s -1 %d', token, now_us))
  deleted[1], deleted[2], deleted[#deleted + 1] = deleted[1] + 1, deleted[2] + 1, token
end
redis.call('DEL', pool)
return deleted
