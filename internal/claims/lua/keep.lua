-- keep: write that a task is enqueued: that of the claim, or the newer one, which has the claim from now on.
--
-- KEYS[1] claim
-- ARGV[1] body    <queue>/<task>
-- ARGV[2] length  how long the claim stands from now at least (ms); 0: as long as it did
--
-- reply {body, age (ms), phase, newer, its age (ms), stale} of the claim that stands now
if body and newer == name(ARGV[1]) then pass_on(ARGV[1]) end
if body == ARGV[1] then
  if phase == 'enqueuing' then phase = 'enqueued' end
  deadline = math.max(deadline, now_ms + ARGV[2])
  write()
end
return standing()
