-- claim: what claim_take, claim_keep and claim_start share. Included, never sent alone.
-- Expects: claim, now_ms.
--
-- A claim is one string of five words: since (ms), deadline (ms), phase, stale, body.
--   phase  enqueuing: its producer may still be enqueuing the task; enqueued; waiting: a worker waits
--          for the task's lock; begun: the task's handler has begun
--   stale  tasks that were superseded while a worker had them, each by the end of its ID, with
--          commas between and around them; '-': none
--   body   <queue>/<task>. Tasks that supersede each other are a series: their bodies differ in the
--          number at the end only, and the claim is that of the highest one that was accepted.

local function write(since, deadline, phase, stale, body)
  redis.call('SET', claim, string.format('%d %d %s %s ', since, deadline, phase, stale) .. body,
    'PX', string.format('%d', math.max(deadline - now_ms, 0) + 1000))
end

-- standing: since, deadline, phase, stale and body of the claim, or nil if there is none or its
-- deadline has passed.
local function standing()
  local since, deadline, phase, stale, body =
    string.match(redis.call('GET', claim) or '', '^(%d+) (%d+) (%l+) (%S+) (.*)$')
  deadline = tonumber(deadline)
  if not body or deadline <= now_ms then
    return nil
  end
  return tonumber(since), deadline, phase, stale, body
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
