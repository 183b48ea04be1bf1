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
local claim, length = KEYS[1], tonumber(ARGV[3])
--@include clock
local now_ms = math.floor(now_us / 1000)

--@include claim

local since, _, phase, body = standing()
if body and body ~= ARGV[2] then
  return {body, now_ms - since, phase}
end
write(now_ms, now_ms + length, 'enqueuing', ARGV[1])
return 0
