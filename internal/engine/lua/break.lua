-- break: list the holders, or take slots away from some, who get messages, and grant what is free.
--
-- KEYS: see head
-- ARGV[1] limit  slots; 0: paused
-- ARGV[2] how    list: change nothing; take: from the bodies that follow, 100 at most; key: all keys go;
--                open: a gate opens that CloseGate or a cooldown has closed
--
-- reply {how many of the bodies held it, and 1 for the gate}
-- reply list, key: {how many held it; of a pool all values that it had; body, ...}
local how = ARGV[2]
local w = redis.call('GET', KEYS[1])
local changes = how ~= 'list' and (w or redis.call('EXISTS', KEYS[6]) == 1)
local limit = changes and tonumber(ARGV[1])
--@include head
--@include send
if how == 'list' or how == 'key' then
  local reply = w and not f and not limit and {w} or call('ZRANGEBYSCORE', holders, '(' .. int(now_ms), '+inf')
  table.insert(reply, 1, values and call('ZCARD', values) + call('ZCARD', holders) or #reply)
  if changes then call('UNLINK', marks or word, unpack(KEYS)) end
  return reply
end
--@include leave
local broken = 0
for i = 3, #ARGV do
  local body = ARGV[i]
  if changes and tonumber(call('ZSCORE', holders, body) or 0) > now_ms then
    leave(body)
    broken = broken + 1
  end
  send(token_of(body), broken_fence)
end
if not changes then return {broken} end
local opened = 0
for _, why in ipairs(how == 'open' and {'closed', 'cooldown'} or {}) do
  if gates[why] then
    if gates[why] > now_us then opened = 1 end
    local at
    --@include move
  end
end
local moved, asker, lease = true
--@include free
--@include grant
--@include settle
return {broken + opened}
