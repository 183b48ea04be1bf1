-- claim: what claim_take and claim_keep share. Included, never sent alone.
-- Expects: claim, now_ms.
--
-- A claim is one string: since (ms), deadline (ms), the phase (enqueuing or enqueued) and the body.
-- A plain SET does not know Redis' time. A claim that was written by one has since 0, and its length in
-- place of the deadline. The first take or keep that reads such a claim computes since from how much of
-- the key's TTL is gone, and stores the claim with its deadline.

local function write(since, deadline, phase, body)
  redis.call('SET', claim, string.format('%d %d %s ', since, deadline, phase) .. body,
    'PX', string.format('%d', deadline - now_ms + 1000))
end

-- standing: since, deadline, phase and body of the claim, or nil if there is none or its deadline
-- has passed.
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
