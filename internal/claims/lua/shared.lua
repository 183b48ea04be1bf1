-- shared: what stands before take, keep, start and drop.
--
-- A claim is one string of seven words: since (ms), deadline (ms), phase, newer, at (ms), stale, body.
--   phase  enqueuing: its producer may still be enqueuing the task; enqueued; waiting: a worker waits
--          for the task's lock; begun: the task's handler has begun
--   newer  the task that a producer has been enqueuing in the place of this one since at; '-': none.
--          Until it is known to be enqueued the body's task may begin; then the newer one must not.
--   stale  tasks that may be in Redis, and must not begin, also past the deadline: ,a,b, ; '-': none
--   body   <queue>/<task>. The others are named by the end of their IDs, after the last colon.
local claim, time = KEYS[1], redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)

-- The words of the claim. body is nil if there is none or its deadline has passed.
local since, deadline, phase, newer, at, stale, body =
  string.match(redis.call('GET', claim) or '', '^(%d+) (%d+) (%l+) (%S+) (%d+) (%S+) (.*)$')
since, deadline, at = tonumber(since), tonumber(deadline), tonumber(at)
stale = stale or '-'
if body and deadline <= now_ms then body = nil end

-- write keeps a claim with stale tasks for 30 days at least, as Kept in Go.
local function write()
  if deadline <= now_ms and stale == '-' then
    return redis.call('DEL', claim)
  end
  redis.call('SET', claim,
    string.format('%d %d %s %s %d %s ', since, deadline, phase, newer, at, stale) .. (body or ''),
    'PX', string.format('%d', math.max(deadline - now_ms, stale == '-' and 0 or 2592000000) + 1000))
end

local function name(task) return string.match(task, '[^:]*$') end

-- forbid has a task never begin, by its name; '-': none.
local function forbid(task)
  if task == '-' then return end
  if stale == '-' then
    stale = ',' .. task .. ','
  elseif not string.find(stale, ',' .. task .. ',', 1, true) then
    stale = stale .. task .. ','
  end
end

-- pass_on gives the claim to the newer task, which is enqueued.
local function pass_on(task)
  forbid(name(body))
  body, newer, phase = task, '-', 'enqueued'
end

-- standing is the claim as the replies of take and keep have it.
local function standing()
  if not body then return {'', 0, '', '-', 0, '-'} end
  return {body, now_ms - since, phase, newer, now_ms - at, stale}
end
