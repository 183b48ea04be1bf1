-- calls: which parked notes a reply names. A section.
-- K:parked has the line of the notes, also of called ones; K:called since when (us). A note is called by being named,
-- in each reply until it comes, and keeps its place. One called for longer than life does not count; when 100 are
-- called, it goes to the end of the line. Of who has been in line for 5 s one is called although others wait.
--
-- Expects inbound, how many called and waiting ones there should be (0: call nobody), lend, how many workers the key
-- may borrow, and life (ms). Sets reply, unless nothing is parked: {reply, not called, until the first deadline (ms,
-- -1: none; below: -1 - until the gate opens), called note, ...}
local total = call('ZCARD', parked)
if total == 0 then
  parks, changed = false, true
else
  local ms = parked_for
  --@include keep
  local names = call('ZRANGE', called, '0', '99')
  local before = #names
  if inbound > 0 and limit > 0 and opens <= now_us + 1000000 then
    local fresh = before > 0 and call('ZCOUNT', called, int(now_us - life * 1000), '+inf') or 0
    if before == 100 and fresh < 100 then
      local last = table.remove(names, 1)
      call('ZREM', called, last)
      call('ZADD', parked, int(now_us), last)
      before = 99
    end
    local most = math.max(inbound, free + lend)
    if every > 0 then -- as many as the gate lets through while they come, in half of life
      local next = math.max(gates.rate or 0, now_us - spare)
      most = math.min(most, math.max(1, math.floor((now_us + life * 500 - next) / every) + 1))
    end
    local wanted, age = most - fresh - (nobody and 0 or call('ZCOUNT', line, '-inf', int(aside))), 0
    if wanted <= 0 and fresh == 0 then wanted, age = 1, 5000000 end
    wanted = math.min(wanted, 100 - before)
    if wanted > 0 then
      local is_called, new = {}, {}
      for _, note in ipairs(names) do is_called[note] = true end
      for _, note in ipairs(call('ZRANGE', parked, '0', int(before + wanted - 1))) do
        if not is_called[note] and wanted > 0
          and (age == 0 or now_us - call('ZSCORE', parked, note) >= age) then
          wanted = wanted - 1
          names[#names + 1] = note
          new[#new + 1], new[#new + 2] = int(now_us - wanted), note
        end
      end
      if #new > 0 then
        call('ZADD', called, unpack(new))
        if before == 0 then call('PEXPIREAT', called, int(good)) end
      end
    end
  end
  local soonest = -1
  if count > 0 then
    local live = call('ZRANGEBYSCORE', holders, '(' .. int(now_ms), '+inf', 'WITHSCORES', 'LIMIT', '0', '1')
    soonest = live[2] - now_ms
  end
  if opens > now_us and (count == 0 or limit > 1) then soonest = -1 - math.ceil((opens - now_us) / 1000) end
  reply = {reply, total - #names, soonest}
  for _, note in ipairs(names) do reply[#reply + 1] = note end
end
