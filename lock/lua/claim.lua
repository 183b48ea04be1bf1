-- claim: what claim_take and claim_keep share. Included, never sent alone.
-- Expects: claim, now_ms.
--
-- A claim is one string: since (ms), deadline (ms), enqueuing or enqueued, body.
-- One that was set by a plain SET, which knows no time, has 0 as since and its
-- length as the deadline; its age is what is gone of the key's TTL. (That only
-- gives the age; the claim then ends at the deadline stored here.)

local function write(since, deadline, phase, body)
  redis.call('SET', claim, string.format('%d %d %s ', since, deadline, phase) .. body,
    'PX', string.format('%d', deadline - now_ms + 1000))
end

-- standing: since, deadline, phase and body of the claim that stands; nil: none.
local function standing()
  local stored = redis.call('GET', claim)
  if not stored then
    return nil
  end
  local since, deadline, phase, body = string.match(stored, '^(%d+) (%d+) (%l+) (.*)$')
  since, deadline = tonumber(since), tonumber(deadline)
  if since == 0 then
    since = now_ms - math.max(0, deadline + 1000 - redis.call('PTTL', claim))
    deadline = since + deadline
    if deadline > now_ms then
      write(since, deadline, phase, body)
    end
  end
  if deadline <= now_ms then
    return nil
  end
  return since, deadline, phase, body
end
