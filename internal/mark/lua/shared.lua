-- shared: what stands before take, keep, start and drop.
--
-- A mark is one string of five words: since (ms), deadline (ms), phase, stale, body.
--   phase  enqueuing: its producer may still be enqueuing the task; enqueued; waiting: a worker waits
--          for the task's lock; begun: the task's handler has begun
--   stale  tasks that were superseded while a worker had them, each by the end of its ID, with
--          commas between and around them; '-': none
--   body   <queue>/<task>. Tasks that supersede each other are a series: their bodies differ in the
--          number at the end only, and the mark is that of the highest one that was accepted.
local mark, time = KEYS[1], redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)

-- standing: since, deadline, phase, stale and body of the mark, or nil if there is none or its
-- deadline has passed.
local since, deadline, phase, stale, body =
  string.match(redis.call('GET', mark) or '', '^(%d+) (%d+) (%l+) (%S+) (.*)$')
since, deadline = tonumber(since), tonumber(deadline)
if body and deadline <= now_ms then
  since, deadline, phase, stale, body = nil
end

local function write(since, deadline, phase, stale, body)
  redis.call('SET', mark, string.format('%d %d %s %s ', since, deadline, phase, stale) .. body,
    'PX', string.format('%d', math.max(deadline - now_ms, 0) + 1000))
end

-- with_stale is stale with the task of a body.
local function with_stale(stale, body)
  local name = string.match(body, '[^:]*$') .. ','
  if stale == '-' then
    return ',' .. name
  elseif string.find(stale, ',' .. name, 1, true) then
    return stale
  end
  return stale .. name
end
