-- break: take slots away from their holders, and grant what is free now. Each holder gets a
-- message, so that its work stops.
--
-- KEYS[1] lock
-- ARGV[1] limit  slots of this lock, as the caller sees it; 0: it is paused
-- ARGV[2] token  <token> of the holder; empty: all holders, and a gate opens that CloseGate or a
--                cooldown has closed
-- ARGV[3] all    0: the line stays; 1: the line goes too, and with it the key; 2: holders and
--                line stay, and only the gate opens
-- ARGV[4] known  the only holders that may lose the lock: " <token> <token> ... "; *: any
--
-- reply broken:  {slots taken of live holders, and 1 for the gate; how many tokens follow; <token>, ...}
-- reply unknown: {-1, 0}, a holder is none of the known ones, and nothing has changed
-- reply nothing: {-2, 0}, there is no such key
local lock, limit, token, all = KEYS[1], tonumber(ARGV[1]), ARGV[2], ARGV[3]
--@include clock

--@include deadline

--@include form

-- known: the holder with that token may lose the lock.
local function known(its)
  return ARGV[4] == '*' or string.find(ARGV[4], ' ' .. its .. ' ', 1, true)
end

if redis.call('EXISTS', lock) == 0 then
  return {-2, 0}
end
local taker, left = string_holder()
if taker and not known(string.match(taker, '^[^|]*')) then
  return {-1, 0}
elseif taker and all == '2' then
  return {0, 0} -- a string has no gate
elseif taker then
  widen(taker, left)
end
--@include line

holders() -- those whose deadline has passed leave
local broken = {0, 0}
local stored = all == '2' and {} or redis.call('ZRANGEBYSCORE', lock, 1e11, 1e14)
for _, member in ipairs(stored) do
  if not known(string.match(member, '^h:([^|]*)')) then
    return {-1, 0}
  end
end
for _, member in ipairs(stored) do
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
if all == '1' then
  redis.call('DEL', lock)
  return broken
end
grant((holders()))
tidy()
return broken
