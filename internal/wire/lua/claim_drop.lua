-- claim_drop: delete a claim if this task has it.
--
-- KEYS[1] claim
-- ARGV[1] body  <queue>/<task> that has the claim
--
-- reply 1 dropped: the claim is deleted
-- reply 0 absent:  no claim, or another one's
local claim = KEYS[1]

local stored = redis.call('GET', claim)
if stored and string.match(stored, '^%d+ %d+ %l+ %S+ (.*)$') == ARGV[1] then
  return redis.call('DEL', claim)
end
return 0
