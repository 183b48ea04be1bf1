-- hold: body takes a slot for length ms. A section; expects body, length, and cost, for how many starts it counts, and
-- that the gate is open. Sets fence, and value in a pool.
do
  local ms = length
  --@include keep
end
call('ZADD', holders, int(now_ms + length + 1), body)
if count == 0 then
  call('PEXPIREAT', holders, int(good))
  first = body
end
count, fence, changed, moved = count + 1, math.max(now_us, fence + 1), true, true
if every > 0 then
  local why, at = 'rate', math.max(gates.rate or 0, now_us - spare) + math.min(cost * every, ten_years * 1000)
  --@include move
end
if values then
  local token = token_of(body)
  value = call('ZPOPMIN', values)[1]
  call('HSET', info, 'v:' .. token, value, 't:' .. value, token)
elseif noted and (limit ~= 1 or count > 1) then
  first = first or body -- whoever was the first has a field already
  local before, note = string.match(first, '^([^|]*|[^|]*)|(.*)$')
  call('HSET', info, 'n:' .. note, before, 'n:' .. note_of(body), string.match(body, '^[^|]*|[^|]*'))
end
