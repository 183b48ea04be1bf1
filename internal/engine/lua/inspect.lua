-- inspect: who holds the lock, and who is in line for it. Reads only.
--
-- KEYS: see head
-- ARGV[1] most   how many holders to list, and values; 0: none
--
-- reply {now (us), holders, waiting, parked, called, last fence (0: not known), {body, deadline (ms), ...}, why the
-- gate is closed (empty: open), for how long (us), tasks in order, {nonce, ticket (us), record} of the first, free
-- values, {value, ...}, and in a pool {value of each holder, ...}}
local limit, most = nil, tonumber(ARGV[1])
local w = redis.call('GET', KEYS[1]) or redis.call('EXISTS', KEYS[6]) == 1 and '+0 0 gate'
--@include head
if not f then
  local holder = w and most > 0 and {w, int(now_ms + call('PTTL', word))} or {}
  return {now_us, w and 1 or 0, 0, 0, 0, 0, holder, '', 0, 0, {}, 0, {}}
end
local alive = '(' .. int(now_ms)
local listed = most > 0 and call('ZRANGEBYSCORE', holders, alive, '+inf', 'WITHSCORES', 'LIMIT', '0', ARGV[1]) or {}
local waiting, is_called = call('ZCARD', line), call('ZCARD', called)
local tokens = call('ZRANGE', line, '0', '99') -- dead ones among them do not count
for _, record in ipairs(#tokens > 0 and call('HMGET', info, unpack(tokens)) or {}) do
  if tonumber(string.match(record or '0', '^%d+')) <= now_ms then waiting = waiting - 1 end
end
local tasks, head, free_values, free, taken = 0, {}, 0, {}, nil
if order then
  tasks = call('ZCARD', order)
  head = call('ZRANGE', order, '0', '0', 'WITHSCORES')
  if head[1] then head[3] = call('HGET', info, 'o:' .. head[1]) end
elseif values then
  -- What holders had whose lease has ended is free.
  local dead = call('ZRANGEBYSCORE', holders, '-inf', int(now_ms), 'LIMIT', '0', ARGV[1])
  free_values = call('ZCARD', values) + call('ZCOUNT', holders, '-inf', int(now_ms))
  if most > 0 then
    free = call('ZRANGE', values, '0', int(most - 1))
    for _, body in ipairs(dead) do free[#free + 1] = call('HGET', info, 'v:' .. token_of(body)) end
  end
  local fields = {}
  for i = 1, #listed, 2 do fields[#fields + 1] = 'v:' .. token_of(listed[i]) end
  if #fields > 0 then taken = call('HMGET', info, unpack(fields)) end
end
local why
for _, one in ipairs({'rate', 'cooldown', 'closed'}) do
  if gates[one] and gates[one] > now_us then why = one end
end
return {now_us, count, waiting, call('ZCARD', parked) - is_called, is_called, fence,
  listed, why or '', why and gates[why] - now_us or 0, tasks, head, free_values, free, taken}
