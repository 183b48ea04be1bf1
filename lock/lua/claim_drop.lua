-- claim_drop: take a claim away, if it is this task's.
--
-- KEYS[1] claim
-- ARGV[1] body  <queue>/<task> that has the claim
--
-- reply 1 dropped: nothing is left of it
-- reply 0 absent:  no claim, or another one's
local claim = KEYS[1]

local stored = redis.call('GET', claim)
if stored and string.match(stored, '^%d+ %d+ %l+ (.*)$') == ARGV[1] then
  return redis.call('DEL', claim)
end
return 0
