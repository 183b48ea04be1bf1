-- overtaken: whether as many newer tasks count as there are slots; 0: paused, so not. A section; expects arrivals,
-- newest, slots.
local function overtaken(came)
  local after = '(' .. came
  return slots > 0
    and redis.call('ZCOUNT', arrivals, after, '+inf') + redis.call('ZCOUNT', newest, after, '+inf') >= slots
end
