-- take: set a claim, unless there is one; or announce a task that is to take the place of its own. Sent twice, the
-- second changes nothing.
--
-- KEYS[1] claim
-- ARGV[1] body     <queue>/<task> that takes it
-- ARGV[2] instead  <queue>/<task> whose claim is replaced if it is there; '': none is replaced
-- ARGV[3] length   how long the claim stands (ms); 0: instead's task lives, and the claim stands as it did
-- ARGV[4] given up with length 0: the newer task whose producer is given up; '-': none
--
-- reply {body, age (ms), phase, newer, its age (ms), stale} of the claim that stands now
if ARGV[3] == '0' then
  if body == ARGV[2] and phase ~= 'begun' and newer == ARGV[4] then
    forbid(newer)
    newer, at = name(ARGV[1]), now_ms
    write()
  end
elseif not body or body == ARGV[2] then
  if body then forbid(newer) end
  since, deadline, phase, newer, at, body = now_ms, now_ms + ARGV[3], 'enqueuing', '-', 0, ARGV[1]
  write()
end
return standing()
