-- overtaken: whether as many newer tasks count as there are slots. A section; expects arrivals, newest and slots (0:
-- the lock is paused, and nobody is judged).
local function overtaken(came)
  local after = '(' .. came
  return slots > 0
    and redis.call('ZCOUNT', arrivals, after, '+inf') + redis.call('ZCOUNT', newest, after, '+inf') >= slots
end
