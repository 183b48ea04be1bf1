-- stop: the newest win. If there are fewer slots than holders and waiters with an arrival, ask
-- the older ones to stop. The request is a message and takes nothing away: a holder keeps its
-- slot until it releases it. Holders are not asked while the gate is closed or the lock is
-- paused: nobody could start in their place.
--
-- KEYS[1] lock
-- ARGV[1] limit    slots of this lock, as the caller sees it; 0: it is paused
-- ARGV[2] arrival  when the caller arrived (us)
--
-- reply 0 newest:          the caller is among the newest
-- reply 1 behind holders:  enough newer ones hold slots
-- reply 2 behind waiters:  enough newer ones hold or wait, of whom some wait
--
-- token = <channel>.<G>.<nonce>, or <channel>.<G>.<nonce>.<arrival> of a holder or waiter
-- that can be asked to stop. The script reads the first 1,000 holders, and the last 256
-- waiters: waiters before them run this script themselves.
local lock, limit, arrival = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2])
--@include clock

--@include deadline

--@include form

local taker, left = string_holder()
if taker then
  widen(taker, left)
end

local known, others, holding = {}, 0, false
for _, member in ipairs(redis.call('ZRANGEBYSCORE', lock, string.format('(%d', now_ms), 1e14, 'LIMIT', 0, 1000)) do
  local token, came = string.match(member, '^h:([^.|]*%.%d+%.[^.|]*%.(%d+))|')
  if not token then
    others = others + 1 -- a holder without an arrival
  else
    came = tonumber(came)
    holding = holding or came == arrival
    known[#known + 1] = {token = token, came = came}
  end
end
local free = limit - others - #known
local gate = redis.call('ZREVRANGEBYSCORE', lock, '(1e11', '1e9', 'WITHSCORES', 'LIMIT', 0, 1)[2]
local may_start = limit > 0
if gate and gate * 1e6 > now_us then -- the gate is closed; see gate
  free, may_start = 0, false
end
for _, member in ipairs(redis.call('ZREVRANGEBYSCORE', lock, '(4e15', 2e15, 'LIMIT', 0, 256)) do
  local token, came = string.match(member, '^e:([^.|]*%.%d+%.[^.|]*%.(%d+))|')
  local until_ms = token and redis.call('ZSCORE', lock, 'd:' .. string.sub(member, 3))
  if until_ms and -until_ms > now_ms then
    known[#known + 1] = {token = token, came = tonumber(came), waits = true}
  end
end

-- The caller itself may not be among them yet.
local newer, newer_wait, older = 0, 0, {}
for _, one in ipairs(known) do
  if one.came > arrival then
    newer = newer + 1
    if one.waits then
      newer_wait = newer_wait + 1
    end
  elseif one.came < arrival then
    older[#older + 1] = one
  end
end
local slots = math.max(1, limit - others)
if newer >= slots then
  -- Those older than the caller are the newer ones' affair.
  return newer_wait > 0 and 2 or 1
end
if free <= 0 and not holding then
  table.sort(older, function(one, other) return one.came > other.came end)
  for place, one in ipairs(older) do
    if newer + 1 + place > slots and (one.waits or may_start) then
      -- pcall: an ACL without the channel must not keep the caller from its answer.
      redis.pcall('PUBLISH', string.match(lock, '^[^{]*') .. string.match(one.token, '^[^.]*'),
        string.format('%s -2 %d', one.token, now_us))
    end
  end
end
return 0
