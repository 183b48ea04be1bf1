-- claim_keep: note that the task of a claim is enqueued, or pass the claim on to another task
-- that is enqueued. The claim's age stays.
--
-- KEYS[1] claim
-- ARGV[1] body    <queue>/<task> that has the claim
-- ARGV[2] next    <queue>/<task> that has it from now on; may be the same
-- ARGV[3] length  how long the claim stands from now at least (ms); 0: as long as it did
--
-- reply 1 kept:   next has the claim, and is enqueued
-- reply 0 absent: there is no claim, or neither task has it
local claim = KEYS[1]
--@include clock
local now_ms = math.floor(now_us / 1000)

--@include claim

local since, deadline, _, body = standing()
if not body or (body ~= ARGV[1] and body ~= ARGV[2]) then
  return 0
end
write(since, math.max(deadline, now_ms + ARGV[3]), 'enqueued', ARGV[2])
return 1
