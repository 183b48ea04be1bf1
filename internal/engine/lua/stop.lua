-- stop: the newest win (Replace). If there are fewer slots than holders and waiters with an arrival, ask the older ones
-- to stop. That is a message, and takes nothing away. Holders are not asked while the gate is closed or the lock is
-- paused.
--
-- KEYS 1 to 6    word, holders, line, parked, called, info
-- ARGV[1] limit    slots; 0: paused
-- ARGV[2] arrival  of the caller (us)
--
-- reply 0: the caller is among the newest; 1: enough newer ones hold slots; 2: so, but some of them wait
-- The token of who can be asked ends with .<arrival>. The script reads the first 100 holders and the last 100 waiters.
local limit, slots, arrival = nil, tonumber(ARGV[1]), tonumber(ARGV[2])
local w = redis.call('GET', KEYS[1])
--@include head
local own, told
local bodies, waiting = w and not f and {w} or {}, {}
if f then
  bodies = call('ZRANGEBYSCORE', holders, '(' .. int(now_ms), '+inf', 'LIMIT', '0', '100')
  for _, token in ipairs(call('ZREVRANGE', line, '0', '99')) do
    local till = string.find(token, '%.%d+$') and string.match(call('HGET', info, token) or '', '^%d+')
    if till and tonumber(till) > now_ms then waiting[#waiting + 1] = token end
  end
end

local known, others, holding = {}, 0, false
local function note_one(token, waits)
  local came = tonumber(string.match(token, '^[^.]*%.[^.]*%.(%d+)$') or nil)
  if came then
    known[#known + 1] = {token = token, came = came, waits = waits}
    holding = holding or not waits and came == arrival
  elseif not waits then
    others = others + 1 -- a holder without an arrival
  end
end
for _, body in ipairs(bodies) do note_one(token_of(body), false) end
local free = opens > now_us and 0 or slots - others - #known
for _, token in ipairs(waiting) do note_one(token, true) end

-- The caller itself may not be among them yet.
local newer, newer_wait, older = 0, 0, {}
for _, one in ipairs(known) do
  if one.came > arrival then
    newer = newer + 1
    newer_wait = newer_wait + (one.waits and 1 or 0)
  elseif one.came < arrival then
    older[#older + 1] = one
  end
end
local room = math.max(1, slots - others)
if newer >= room then return newer_wait > 0 and 2 or 1 end
if free <= 0 and not holding then
  table.sort(older, function(one, other) return one.came > other.came end)
  for place, one in ipairs(older) do
    if newer + 1 + place > room and (one.waits or slots > 0 and opens <= now_us) then
      local message = one.token .. ' -2 ' .. int(now_us)
      --@include send
    end
  end
end
return 0
