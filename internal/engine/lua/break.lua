-- break: take slots away from their holders, 100 a call, and grant what is free now. Each gets a message, so that its
-- work stops.
--
-- KEYS 1 to 6    word, holders, line, parked, called, info; in a pool KEYS[7] values; in others KEYS 7 and 8 order,
-- marks
-- ARGV[1] limit  slots; 0: paused
-- ARGV[2] token  of the holder; empty: all, and a gate opens that CloseGate or a cooldown has closed
-- ARGV[3] all    0: the line stays; 1: all keys go; 2: holders and line stay, and only the gate opens
-- ARGV[4] from   for a token: how many live holders were looked at before
--
-- reply broken:  {slots taken of live holders, and 1 for the gate; 1: call again for the others, else 0; token, ...};
-- the last one for all
--                keys of a pool: {values that it had, 0, token, ...}
-- reply nothing: {-2}: there is no such lock
local limit, wanted, all = tonumber(ARGV[1]), ARGV[2], ARGV[3]
local w = redis.call('GET', KEYS[1])
if not w and redis.call('EXISTS', KEYS[6]) == 0 then return {-2} end
--@include head
local own, told
--@include leave
local broken = {0, 0}
local from = wanted == '' and 0 or tonumber(ARGV[4])
local bodies = all == '2' and {} or
  call('ZRANGEBYSCORE', holders, '(' .. int(now_ms), '+inf', 'LIMIT', int(from), '100')
if all ~= '2' and count > from + #bodies then broken[2] = 1 end
for _, body in ipairs(bodies) do
  local token = token_of(body)
  if wanted == '' or token == wanted then
    leave(body)
    broken[1], broken[#broken + 1] = broken[1] + 1, token
    local message = token .. ' -1 ' .. int(now_us)
    --@include send
  end
end
if all == '1' and broken[2] == 0 then
  if values then broken[1] = call('ZCARD', values) + call('ZCARD', holders) end
  call('UNLINK', marks or word, unpack(KEYS))
  return broken
end
for _, why in ipairs(wanted == '' and {'closed', 'cooldown'} or {}) do
  if gates[why] then
    if gates[why] > now_us then broken[1] = math.max(broken[1], #broken - 1) end
    local at = nil
    --@include move
  end
end
if wanted == '' and broken[2] == 1 then limit = 0 end -- who got a slot now would lose it with the next call
local free, moved, asker, lease = math.max(0, limit - count), true, nil, nil
if values and limit > 0 then free = call('ZCARD', values) end
--@include grant
--@include settle
return broken
