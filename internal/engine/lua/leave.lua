-- leave: body is no holder any more. What K:info has of it goes, its value is free again, last, unless consumed, and
-- who stands aside for it returns.
local function leave(body, consume)
  call('ZREM', holders, body)
  count = count - 1
  if body == first then first = nil end
  if values then
    local token = token_of(body)
    local value = call('HGET', info, 'v:' .. token)
    call('HDEL', info, 'v:' .. token, 't:' .. (value or ''))
    if value and value ~= consume then
      local last = call('ZRANGE', values, '-1', '-1', 'WITHSCORES')[2]
      call('ZADD', values, int(math.max(now_us, (last or 0) + 1)), value)
      if not last then call('PEXPIREAT', values, int(good)) end
    end
  elseif noted then
    local note = note_of(body)
    local found = call('HMGET', info, 'n:' .. note, 'a:' .. note)
    if found[1] and found[1] .. '|' .. note ~= body then return end -- another one has it since
    call('HDEL', info, 'n:' .. note, 'a:' .. note)
    local at = found[2] and call('ZSCORE', line, found[2])
    if at then call('ZADD', line, int(at % aside), found[2]) end
  end
end
