-- keep: note that a task is enqueued: that of the mark, or the newer one, which has the mark from now on.
--
-- KEYS[1] mark
-- ARGV[1] body    <queue>/<task>
-- ARGV[2] length  how long the mark stands from now at least (ms); 0: as long as it did
--
-- reply {body, age (ms), phase, newer, its age (ms), stale} of the mark that stands now
if body and newer == name(ARGV[1]) then pass_on(ARGV[1]) end
if body == ARGV[1] then
  if phase == 'enqueuing' then phase = 'enqueued' end
  deadline = math.max(deadline, now_ms + ARGV[2])
  write()
end
return standing()
