-- take: set a mark, unless there is one already. The second copy of a take that was sent twice finds
-- the mark of the first, and replies "standing" with the take's own body.
--
-- KEYS[1] mark
-- ARGV[1] body     <queue>/<task> that takes it
-- ARGV[2] instead  <queue>/<task> whose mark is replaced if it is there; '': none is replaced
-- ARGV[3] length   how long the mark stands (ms)
--
-- reply taken:    0
-- reply standing: {body of the mark that is there, its age (ms), its phase}
if body and body ~= ARGV[2] then
  return {body, now_ms - since, phase}
end
-- Stale tasks are still in workers, so the next mark goes on to know them.
write(now_ms, now_ms + ARGV[3], 'enqueuing', stale or '-', ARGV[1])
return 0
