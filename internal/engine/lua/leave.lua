-- leave: body is no holder any more. What K:info has of it goes, and its value is free again, behind the others, unless
-- it is consumed.
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
  elseif noted and (limit ~= 1 or count > 0) then
    call('HDEL', info, 'n:' .. note_of(body))
  end
end
