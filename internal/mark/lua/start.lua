-- start: note in a mark how far its task is: it waits in a worker, its handler begins, or the
-- task has ended. Whether the handler may begin is decided here, in one step with keep: a task
-- that another one has superseded must not start.
--
-- KEYS[1] mark
-- ARGV[1] body    <queue>/<task>
-- ARGV[2] phase   one of waiting, begun, ended
-- ARGV[3] ends    1: the mark ends when the handler begins; else 0
-- ARGV[4] length  waiting, begun: how long the mark stands from now at least (ms); ended: at most
--
-- reply 1 own:        the handler may begin
-- reply 0 superseded: another task has taken the place of this one
if not body then
  return 1
end
if body ~= ARGV[1] then
  local name = string.match(ARGV[1], '[^:]*$') .. ','
  local at = string.find(stale, ',' .. name, 1, true)
  if at and ARGV[2] == 'ended' then
    stale = string.sub(stale, 1, at) .. string.sub(stale, at + #name + 1)
    if stale == ',' and ARGV[3] == '1' and phase == 'begun' then
      redis.call('DEL', mark) -- it stood for its stale tasks alone
    else
      write(since, deadline, phase, stale == ',' and '-' or stale, body)
    end
  end
  if at then
    return 0
  end
  local series, number = string.match(body, '^(.*)%.(%d+)$')
  local own_series, own = string.match(ARGV[1], '^(.*)%.(%d+)$')
  if not series or series ~= own_series then
    return 1
  elseif tonumber(own) < tonumber(number) then
    return 0
  elseif ARGV[2] ~= 'begun' then
    return 1
  elseif phase == 'begun' then
    return tonumber(ARGV[3])
  end
  -- The producer of this task died, or is slow, before it passed the mark on.
  stale = with_stale(stale, body)
elseif ARGV[2] == 'ended' then
  write(since, math.min(deadline, now_ms + ARGV[4]), phase, stale, body)
  return 1
elseif ARGV[2] == 'waiting' and phase == 'begun' then
  return 1
end
if ARGV[2] == 'begun' and ARGV[3] == '1' and stale == '-' then
  redis.call('DEL', mark)
else
  write(since, math.max(deadline, now_ms + ARGV[4]), ARGV[2], stale, ARGV[1])
end
return 1
