-- break: take slots from their holders, whether these like it or not, and
-- grant what is free now. Each holder is told, so that its work stops.
--
-- KEYS[1] lock
-- ARGV[1] limit  slots of this lock, as the caller sees it; 0: it is paused
-- ARGV[2] token  <token> whose slot it is; empty: everybody's, and the gate opens that a
--                hold or a cooldown has closed
-- ARGV[3] all    1: the line goes as well, what is parked, and with it the key; 0: they stay
--
-- reply broken: {slots taken of live holders, and 1 for the gate; how many tokens follow; <token>, ...}
local lock, limit, token = KEYS[1], tonumber(ARGV[1]), ARGV[2]
--@include clock

--@include deadline

--@include form

local taker, left = string_holder()
if taker then
  widen(taker, left)
end
--@include line

holders() -- those whose deadline has passed leave
local broken = {0, 0}
for _, member in ipairs(redis.call('ZRANGEBYSCORE', lock, 1e11, 1e14)) do
  local its = string.match(member, '^h:([^|]*)')
  if token == '' or its == token then
    redis.call('ZREM', lock, member)
    broken[1], broken[2], broken[#broken + 1] = broken[1] + 1, broken[2] + 1, its
    redis.pcall('PUBLISH', string.match(lock, '^[^{]*') .. string.match(its, '^[^.]*'),
      string.format('%s -1 %d', its, now_us))
  end
end
moved = true
if token == '' then
  broken[1] = broken[1] + open_gate()
end
if ARGV[3] == '1' then
  redis.call('DEL', lock)
  return broken
end
grant((holders()))
tidy()
return broken
