-- advance: a free slot goes to a waiter in K:line, who takes the lock in no order. Else to the head, if it waits in a
-- worker. Parked tasks are called in order until inbound of them and of waiting ones are coming, none behind one that is
-- not. A head to look for is named. A section; expects inbound, ended: a slot came free just now, so the head is not
-- late; and send. Writes the word. Sets free, the free slots, and waiting: nil if none is, else {parked and waiting,
-- until the first deadline or the gate opens (ms, -1: neither), named, ...}.
local waiting
do
  if count < limit and opens <= now_us then
    local free, asker, lease = limit - count
    --@include grant
  end
  --@include look
  local tasks = first_tasks(math.max(2, inbound + 1))
  local head = tasks[1]
  if head and count < limit and opens <= now_us and waits_alive(head) then
    local length, cost, owner = string.match(head.owner, '^(%d+) (%d+) (.*)$')
    local body, value = table.concat({head.token, owner, head.note}, '|'), nil
    length, cost = tonumber(length), tonumber(cost)
    --@include hold
    head.state, head.since, head.owner, head.begun, head.seen = 'a', 0, owner, head.retried + 1, now_us
    put_task(head)
    send(head.token, int(fence))
  end
  if head and ended and opens > now_us and waits_alive(head) then -- the gate has closed: the head asks when it opens
    send(head.token, gate_fence, int(opens - now_us))
  end
  free = math.max(0, limit - count)
  if not head then
    if ordered then ordered, changed = false, true end
  else
    local ms = head.state == 'h' and ten_years or month
    --@include keep
    local total = #tasks
    if total > 3 or total > inbound then total = call('ZCARD', order) end
    if total > 1 or head.state == 'p' or head.state == 'c' then
      local soonest = -1
      if count > 0 then soonest = math.max(1, call('ZRANGE', holders, '0', '0', 'WITHSCORES')[2] - now_ms) end
      if opens > now_us and count < limit then soonest = math.ceil((opens - now_us) / 1000) end
      waiting = {total, soonest}
      local unserved = limit > 0 and free > 0 and opens <= now_us and not ended
      if unserved and is_due(head) then waiting[3] = named('l', head) end
      local coming = 0
      for i, task in ipairs(limit > 0 and opens <= now_us + 1000000 and tasks or {}) do
        if task.state == 'p' and coming < inbound then
          task.state, task.since = 'c', now_ms
          put_task(task)
        end
        if task.state == 'c' then
          waiting[#waiting + 1] = named('c', task)
        elseif not waits_alive(task) and not (i == 1 and run_of(task)) then
          break
        end
        if task.state ~= 'a' then coming = coming + 1 end
      end
    end
  end
  --@include settle
end
