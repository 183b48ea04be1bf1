-- inspect: who holds the lock and who is in line for it. Reads only.
--
-- KEYS[1] lock
-- ARGV[1] most  how many holders to list; 0: none
-- ARGV[2] note  of a parked or called entry whose place is wanted: <note>; empty: of none
-- ARGV[3] ticket  of a task in order whose place is wanted (us); 0: of none
--
-- reply {server time (us), holders, waiting, parked, called, when the last slot was taken (us, 0: never), place of the note (-1: none), {holder member, deadline (ms), ...}, the strongest reason for which the gate is closed (empty: it is open), for how long (us), tasks in order, {member, score} of the first of these (empty: there is none)}
local lock, most, note, ticket = KEYS[1], tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])
--@include clock

--@include deadline

--@include form

local taker, left = string_holder()
if taker then
  local holder = most > 0 and {'h:' .. taker, string.format('%d', math.ceil(now_us / 1000) + left)} or {}
  return {now_us, 1, 0, 0, 0, 0, -1, holder, '', 0, 0, {}}
end
local after = '(' .. string.format('%.0f', math.floor(now_us / 1000))

local listed = {}
if most > 0 then
  listed = redis.call('ZRANGEBYSCORE', lock, after, 1e14, 'WITHSCORES', 'LIMIT', 0, most)
end
local waiting, called = redis.call('ZCOUNT', lock, 2e15, '(4e15'), redis.call('ZCOUNT', lock, 6e15, 8e15)
local place, score = -1, note ~= '' and redis.call('ZSCORE', lock, 'p:' .. note)
if score and tonumber(score) >= 6e15 then
  place = redis.call('ZCOUNT', lock, 6e15, '(' .. score)
elseif score then
  place = waiting + called + redis.call('ZCOUNT', lock, 4e15, '(' .. score)
end
local ordered, head = redis.call('ZCOUNT', lock, '(8e15', '+inf'), {}
if ordered > 0 then
  head = redis.call('ZRANGEBYSCORE', lock, '(8e15', '+inf', 'WITHSCORES', 'LIMIT', '0', '1')
end
if ordered > 0 and ticket > 0 then
  local at = string.format('%d', 8e15 + ticket)
  if redis.call('ZCOUNT', lock, at, at) > 0 then
    place = redis.call('ZCOUNT', lock, '(8e15', '(' .. at)
  end
end
local fence = redis.call('ZSCORE', lock, 'f')
local gate, why, closed = redis.call('ZRANGEBYSCORE', lock, '1e9', '(1e11', 'WITHSCORES', 'LIMIT', '0', '3'), '', 0
for i = 1, #gate, 2 do
  local reason = string.match(gate[i], '^g:(%l+)')
  -- The strongest reason has the first name: closed, cooldown, rate.
  if gate[i + 1] * 1e6 > now_us and (why == '' or reason < why) then
    why, closed = reason, math.floor(gate[i + 1] * 1e6 + 0.5) - now_us
  end
end
return {now_us, redis.call('ZCOUNT', lock, after, 1e14), waiting, redis.call('ZCOUNT', lock, 4e15, '(6e15'), called,
  fence and taken_at(listed[1] or '', listed[2], -fence - 1e15) or 0, place, listed, why, closed, ordered, head}
