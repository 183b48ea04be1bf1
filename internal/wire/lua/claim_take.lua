-- claim_take: set a claim, unless there is one already. The second copy of a take that was sent
-- twice finds the claim of the first, and replies "standing" with the take's own body.
--
-- KEYS[1] claim
-- ARGV[1] body     <queue>/<task> that claims
-- ARGV[2] instead  <queue>/<task> whose claim is replaced if it is there; '': none is replaced
-- ARGV[3] length   how long the claim stands (ms)
--
-- reply taken:    0
-- reply standing: {body of the claim that is there, its age (ms), its phase}
local claim, length = KEYS[1], tonumber(ARGV[3])
--@include clock

--@include claim

local since, _, phase, stale, body = standing()
if body and body ~= ARGV[2] then
  return {body, now_ms - since, phase}
end
-- Stale tasks are still in workers, so the next claim goes on to know them.
write(now_ms, now_ms + length, 'enqueuing', stale or '-', ARGV[1])
return 0
