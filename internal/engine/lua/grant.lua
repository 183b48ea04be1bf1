-- grant: the free slots go to live waiters, by their tickets, and then to the asker. A section; expects
--   free   the slots that are free
--   moved  a slot was freed, or a waiter left
--   own, told  see send
--   asker  the body that asks, which lives, and lease, how long it wants the lock (ms); nil: nobody asks, and else
--   costs  for how many starts it counts
-- and sets free, moved, and
--   mine, its_value  the asker's fence, if it got a slot, and its value; asker is nil then
--   nobody  nobody is in line
--   more   it has looked at 100 waiters, and stopped there
-- Where the word says notes, a waiter is passed over while a holder has its note, and keeps its place; but 100 that are
-- passed over go to the end of the line, so that others come.
local mine, its_value, nobody, passed, more
local looks = 100
while free > 0 and not (mine and nobody) do -- the others in line get theirs, or hear when the gate opens
  more = looks == 0
  if more then break end
  looks = looks - 1
  if opens > now_us then
    local head = moved and call('ZRANGE', line, '0', '0')[1]
    if head and head ~= (asker and token_of(asker)) then
      local message = head .. ' -3 ' .. int(now_us) .. ' ' .. int(opens - now_us)
      --@include send
    end
    free = 0
    break
  end
  local body, length, cost, lives, value = asker, lease, asker and costs, true, nil
  local head = call('ZPOPMIN', line)
  local token = head[1]
  if token then
    local till, g, c, rest = string.match(call('HGET', info, token) or '0 0 0 ', '^(%d+) (%d+) (%d+) (.*)$')
    body = token .. '|' .. rest
    if body ~= asker then length, cost, lives = tonumber(g), tonumber(c), tonumber(till) > now_ms end
  else
    nobody = not passed
    if not asker then break end
  end
  local waits = false
  if noted and limit ~= 1 and lives then
    --@include twin
    waits = twin(body)
  end
  if waits and token then
    passed = passed or {}
    passed[#passed + 1], passed[#passed + 2] = head[2], token
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
        local message = token .. ' ' .. int(fence) .. ' ' .. int(now_us) .. (value and ' ' .. value or '')
        --@include send
      end
    end
  end
end
if passed then
  if #passed == 200 then
    for i = 1, 200, 2 do passed[i] = int(now_us) end
  end
  call('ZADD', line, unpack(passed))
  call('PEXPIREAT', line, int(good))
end
