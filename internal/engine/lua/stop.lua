-- stop: the newest win (Replace). If all slots are taken, ask those that are overtaken to stop. That is a message, and
-- takes nothing away. Nobody is asked while the gate is closed or the lock is paused.
--
-- KEYS 1 to 6    word, holders, line, parked, called, info
-- KEYS 7 and 8   arrivals, newest: see arrive
-- ARGV[1] slots    0: paused
-- ARGV[2] arrival  of the caller (us)
--
-- reply 1: the caller is overtaken itself; 0: not
-- The token of who can be asked ends with .<arrival>. Of more than 1,000 holders each call reads others. Of those that
-- wait it reads the last 100; all ask for themselves, too.
local newest, arrivals = table.remove(KEYS), table.remove(KEYS)
local limit, slots, arrival = nil, tonumber(ARGV[1]), ARGV[2]
--@include overtaken
if overtaken(arrival) then return 1 end
local w = redis.call('GET', KEYS[1])
--@include head
local own, told
local bodies, live = {w}, '(' .. int(now_ms)
if f then
  count = call('ZCOUNT', holders, live, '+inf')
  local from = count > 1000 and now_us % (count - 999) or 0
  bodies = call('ZRANGEBYSCORE', holders, live, '+inf', 'LIMIT', int(from), '1000')
end
if math.max(count, #bodies) < slots or slots == 0 or opens > now_us then return 0 end

local known = {} -- "<arrival> <token>"
local function note_one(token)
  local came = string.match(token, '^[^.]*%.[^.]*%.(%d+)$')
  if came then known[#known + 1] = came .. ' ' .. token end
end
for _, body in ipairs(bodies) do note_one(token_of(body)) end
for _, token in ipairs(call('ZREVRANGE', line, '0', '99')) do note_one(token) end
table.sort(known)
for _, one in ipairs(known) do
  local came, token = string.match(one, '^(%d+) (.*)$')
  if not overtaken(came) then break end
  local message = token .. ' -2 ' .. int(now_us)
  --@include send
end
return 0
