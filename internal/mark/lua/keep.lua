-- keep: note that the task of a mark is enqueued, or pass the mark on to another task that is enqueued.
-- The mark of a task whose handler has begun is not passed on. The mark's age stays.
--
-- KEYS[1] mark
-- ARGV[1] body    <queue>/<task> that has the mark
-- ARGV[2] next    <queue>/<task> that has it from now on; may be the same
-- ARGV[3] length  how long the mark stands from now at least (ms); 0: as long as it did
-- ARGV[4] stale   1: a worker may have the first task, which must not start any more; else 0
--
-- reply 1 kept:   next has the mark, and is enqueued
-- reply 0 absent: neither task has the mark, or the first one has it and has begun
if not body or (body ~= ARGV[1] and body ~= ARGV[2]) or (phase == 'begun' and body ~= ARGV[2]) then
  return 0
end
if phase == 'begun' and ARGV[1] ~= ARGV[2] then
  return 1 -- start has passed it on
end
if body ~= ARGV[2] or phase == 'enqueuing' then
  phase = 'enqueued'
end
if ARGV[4] == '1' then
  stale = with_stale(stale, ARGV[1])
end
write(since, math.max(deadline, now_ms + ARGV[3]), phase, stale, ARGV[2])
return 1
