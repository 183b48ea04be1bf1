-- claim_take: set a claim, unless another one stands. Idempotent for one body:
-- a resent take finds its own.
--
-- KEYS[1] claim
-- ARGV[1] body     <queue>/<task> that claims
-- ARGV[2] instead  <queue>/<task> whose claim this one takes the place of; '': nobody's
-- ARGV[3] length   how long the claim stands (ms)
--
-- reply taken:    0
-- reply standing: {body, its age (ms), what it is: enqueuing or enqueued}
--
-- A claim is one string: since (ms), deadline (ms), enqueuing or enqueued, body.
local claim, body, length = KEYS[1], ARGV[1], tonumber(ARGV[3])
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)

local stored = redis.call('GET', claim)
if stored then
  local since, deadline, phase, holder = string.match(stored, '^(%d+) (%d+) (%l+) (.*)$')
  if holder ~= ARGV[2] and tonumber(deadline) > now_ms then
    return {holder, now_ms - since, phase}
  end
end
redis.call('SET', claim, string.format('%d %d enqueuing ', now_ms, now_ms + length) .. body,
  'PX', string.format('%d', length + 1000))
return 0
