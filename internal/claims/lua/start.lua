-- start: write in a claim how far its task is: it waits in a worker, its handler begins, or it has ended. A task that
-- another one has superseded must not start.
--
-- KEYS[1] claim
-- ARGV[1] body    <queue>/<task>
-- ARGV[2] phase   one of waiting, begun, ended
-- ARGV[3] ends    1: the claim ends when the handler begins; else 0
-- ARGV[4] length  waiting, begun: how long the claim stands from now at least (ms); ended: at most
--
-- reply 1 own:        the handler may begin
-- reply 0 superseded: another task has taken the place of this one
local own = name(ARGV[1])
if body and newer == own then pass_on(ARGV[1]) end -- a worker has it, so it is enqueued
if body ~= ARGV[1] then
  local from = string.find(stale, ',' .. own .. ',', 1, true)
  if from and ARGV[2] == 'ended' then
    stale = string.sub(stale, 1, from) .. string.sub(stale, from + #own + 2)
    stale = stale == ',' and '-' or stale
    if stale == '-' and ARGV[3] == '1' and phase == 'begun' then
      deadline = now_ms -- it stood for its stale tasks alone
    end
    write()
  end
  return from and 0 or 1
end
if ARGV[2] == 'ended' then
  if newer == '-' then deadline = math.min(deadline, now_ms + ARGV[4]) end
elseif ARGV[2] == 'begun' or phase ~= 'begun' then
  phase, deadline = ARGV[2], math.max(deadline, now_ms + ARGV[4])
end
if phase == 'begun' and newer ~= '-' then
  -- The handler begins before the newer task is enqueued, which is a duplicate now, or the next in line.
  if ARGV[3] == '1' then
    since, phase, body = now_ms, 'enqueuing', (string.match(body, '^.*:') or '') .. newer
  else
    forbid(newer)
  end
  newer = '-'
end
if ARGV[2] == 'begun' and ARGV[3] == '1' and phase == 'begun' and stale == '-' then deadline = now_ms end
write()
return 1
