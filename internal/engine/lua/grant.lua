-- grant: the free slots go to live waiters, by their tickets, and then to the asker. A section; expects
--   free   the slots that are free; and send
--   moved  a slot was freed, or a waiter left
--   asker  the body that asks, which lives, and lease, how long it wants the lock (ms); nil: nobody asks, and else
--   costs  for how many starts it counts
-- and sets free, moved, and
--   mine, its_value  the asker's fence, if it got a slot, and its value; asker is nil then
--   nobody  nobody is in line
--   more   it has stopped at 100 waiters, which have left or stand aside now
-- Where the word says notes, a waiter stands aside while a holder has its note: its score is its ticket and aside,
-- behind all others. It returns when that holder leaves, or when it asks.
local mine, its_value, nobody, more
local looks, back, asides = 100, nil, false -- asides: all in line stand aside
while free > 0 and not (mine and (nobody or asides)) do -- the others in line get theirs, or hear when the gate opens
  if looks == 0 then
    more, free = true, 0
    break
  end
  looks = looks - 1
  if opens > now_us then
    local head = moved and call('ZRANGE', line, '0', '0')[1]
    if head and head ~= (asker and token_of(asker)) then
      send(head, gate_fence, int(opens - now_us))
    end
    free = 0
    break
  end
  local body, length, cost, lives, value = asker, lease, asker and costs, true, nil
  local head = asides and {} or call('ZPOPMIN', line)
  local token = head[1]
  if token then
    local till, g, c, rest = string.match(call('HGET', info, token) or '0 0 0 ', '^(%d+) (%d+) (%d+) (.*)$')
    body = token .. '|' .. rest
    if body ~= asker then length, cost, lives = tonumber(g), tonumber(c), tonumber(till) > now_ms end
  else
    nobody = not asides
    if not asker then break end
  end
  local waits = false
  if noted and limit ~= 1 and lives then
    --@include twin
    waits = twin(body)
  end
  if waits and token then
    asides = tonumber(head[2]) > aside
    call('ZADD', line, asides and head[2] or int(head[2] + aside), token)
    call('HSET', info, 'a:' .. note_of(body), token)
    back = true
  elseif waits then
    break
  else
    if token then call('HDEL', info, token) end
    if lives then
      --@include hold
      free = free - 1
      if body == asker then
        mine, its_value, asker = fence, value, nil
      else
        send(token, int(fence), value)
      end
    end
  end
end
if back then call('PEXPIREAT', line, int(good)) end
