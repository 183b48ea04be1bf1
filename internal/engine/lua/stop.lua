-- stop: if all slots are taken, the gate is open and the lock not paused, send those that are overtaken a message to
-- stop (Replace).
--
-- KEYS 1 to 6    see head; 7 and 8 arrivals, newest: see arrive
-- ARGV[1] slots  0: paused
-- ARGV[2] came   the caller's arrival (us)
--
-- reply 1: the caller is overtaken itself; 0: not
-- The token of who can be asked ends with .<arrival>. It reads 1,000 holders, and the last 100 waiters that do not stand
-- aside: all call it for themselves, too.
local newest, arrivals = table.remove(KEYS), table.remove(KEYS)
local limit, slots = nil, tonumber(ARGV[1])
--@include overtaken
if overtaken(ARGV[2]) then return 1 end
local w = redis.call('GET', KEYS[1])
--@include head
--@include send
local bodies = {w or nil}
if f then bodies = call('ZRANGEBYSCORE', holders, '(' .. int(now_ms), '+inf', 'LIMIT', '0', '1000') end
if math.max(count, #bodies) < slots or slots == 0 or opens > now_us then return 0 end
local known = {}
local function note_one(token)
  local came = string.match(token, '%..*%.(%d+)$')
  if came then known[#known + 1] = came .. ' ' .. token end
end
for _, body in ipairs(bodies) do note_one(token_of(body)) end
for _, token in ipairs(call('ZREVRANGEBYSCORE', line, int(aside), '0', 'LIMIT', '0', '100')) do note_one(token) end
table.sort(known)
for _, one in ipairs(known) do
  local came, token = string.match(one, '^(%d+) (.*)$')
  if not overtaken(came) then break end
  send(token, stop_fence)
end
return 0
