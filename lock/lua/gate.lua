-- gate: the earliest time of the key's next start. Included by line, never sent alone.
-- Expects: lock, now_us, keep_key.
--
-- The gate is one member of the lock. Its score is the time at which the gate opens, in seconds,
-- exact to a microsecond; all such scores are below those of holders. Its name is
-- g:<reason>:<most>:<every>:<spare>:<full>:<levels>
--   reason  what moved the gate last: rate, cooldown or hold
--   most    the longest time from now until the gate opens (us); if the score is further
--           ahead, Redis' clock was stepped back
--   every   the rate: the time from one start to the next (us); 0: no rate
--   spare   how much unused time of the rate a later burst can use (us): (burst - 1) * every
--   full    the fence of the start that last found the whole burst available, or the time (us) at
--           which the gate last moved otherwise: an earlier start is not charged any more
--   levels  <fence>-<level>;... of later starts, both rising; see count_start
-- The rate is GCRA, with the gate's time as its state: a start at now moves the time to
-- max(time, now - spare) + every. A time before now - spare has no effect, so Redis may forget it.
local gate, opens, reason, most, every, spare, full, levels = nil, 0, nil, 0, 0, 0, 0, ''

-- move_gate: store the gate, and keep the key for as long as the gate has an effect. A full
-- Redis accepts the ZADD only after another write of the script: callers have made one, or the
-- ZREM is one.
local function move_gate(why, at, ahead, since, its_levels)
  its_levels = its_levels or ''
  local name = string.format('g:%s:%d:%d:%d:%d:%s', why, ahead, every, spare, since, its_levels)
  keep_key(math.max(0, math.ceil((at + spare - now_us) / 1000)))
  if gate ~= name then
    redis.call('ZREM', lock, gate or '')
  end
  redis.call('ZADD', lock, string.format('%.6f', at / 1e6), name)
  gate, opens, reason, most, full, levels = name, at, why, ahead, since, its_levels
end

-- read_gate: set the variables above from the gate's member and score. If the gate opens later
-- than it can, Redis' clock was stepped back, and the gate is moved to the latest possible time.
local function read_gate(member, score)
  gate, opens = member, math.floor(score * 1e6 + 0.5)
  reason, most, every, spare, full, levels = string.match(member, '^g:(%l+):(%d+):(%d+):(%d+):(%d+):(.*)$')
  most, every, spare, full = tonumber(most), tonumber(every), tonumber(spare), tonumber(full)
  if opens > now_us + most + 1000000 then
    redis.call('ZREM', lock, '')
    move_gate(reason, now_us + most, most, now_us)
  end
end

-- set_rate: use the asker's rate from now on. Callers have read the gate.
local function set_rate(its_every, its_spare)
  if every == its_every and spare == its_spare then
    return
  end
  every, spare = its_every, its_spare
  if gate then
    redis.call('ZREM', lock, '') -- removes nothing: after it a full Redis lets the ZADD pass
    move_gate(reason, opens, math.max(most, every), now_us)
  end
end

-- add_level: append a start to a list of levels, {fence, level, fence, level, ...}. An earlier
-- start with a level as high says nothing beside it. Of a list of more than 16, the two starts
-- whose levels differ least, as a ratio, become one: the later one, with the lower level of the two,
-- so that a refund can only become too low.
local function add_level(list, fence, level)
  while #list > 0 and list[#list] >= level do
    table.remove(list)
    table.remove(list)
  end
  table.insert(list, fence)
  table.insert(list, level)
  if #list <= 32 then
    return
  end
  local closest = 2
  for i = 4, #list - 2, 2 do
    if list[i + 2] * list[closest] <= list[closest + 2] * list[i] then
      closest = i
    end
  end
  list[closest - 1] = list[closest + 1]
  table.remove(list, closest + 2)
  table.remove(list, closest + 1)
end

-- read_levels: the levels as a list; write_levels: the text of a list.
local function read_levels()
  local list = {}
  for number in string.gmatch(levels, '%d+') do
    table.insert(list, tonumber(number))
  end
  return list
end

local function write_levels(list)
  local texts = {}
  for i = 1, #list, 2 do
    table.insert(texts, string.format('%d-%d', list[i], list[i + 1]))
  end
  return table.concat(texts, ';')
end

-- count_start: charge the rate for a start, because a new holder with that fence gets a slot now.
-- The level of a start is how much of the burst was used up before it (us). If an earlier start is
-- refunded later, the gate's time must not become earlier than it would be without that start:
-- there, this start would have found the level lower by the charge, but never below 0. So the
-- lowest level of all starts after the refunded one limits the refund.
local function count_start(fence)
  if every == 0 then
    return
  end
  local from = now_us - spare
  if gate and opens > from then
    local list = read_levels()
    add_level(list, fence, opens - from)
    move_gate('rate', opens + every, every, full, write_levels(list))
  else
    move_gate('rate', from + every, every, fence)
  end
end

-- give_back: undo the charge for the start of the holder with that fence (1: not known), because
-- its work did not begin. A start from before `full` is not charged any more. The levels of all
-- later starts fall by the refund. If the fence is not known, the refund is limited by the levels
-- of all starts after `full`.
local function give_back(fence)
  if not gate or reason ~= 'rate' or every == 0 or fence ~= 1 and fence < full then
    return
  end
  local list, kept, since, refund = read_levels(), {}, full, nil
  for i = 1, #list, 2 do
    local its_fence, level = list[i], list[i + 1]
    if its_fence > fence then
      refund = refund or math.min(every, level) -- the first one is the lowest
      level = level - refund
    end
    if level > 0 then
      add_level(kept, its_fence, level)
    else
      kept, since = {}, its_fence
    end
  end
  move_gate('rate', opens - (refund or every), every, since, write_levels(kept))
end

-- close_gate: close the gate for length us from now. It never opens sooner than it would have
-- before. While a hold lasts, the reason stays hold. If a rate keeps the gate closed for longer, only
-- a level is added, so that no refund opens the gate before that length is over.
local function close_gate(why, length)
  local at = now_us + length
  if gate and opens > now_us then
    if opens > at and why ~= 'hold' then
      if reason == 'rate' then
        local list = read_levels()
        add_level(list, now_us, opens - at)
        move_gate(reason, opens, most, full, write_levels(list))
      end
      return
    end
    at = math.max(at, opens)
    if reason == 'hold' then
      why = 'hold'
    end
  end
  move_gate(why, at, at - now_us, now_us)
end

-- open_gate: end a hold or a cooldown. Returns 1 if there was one, else 0. A rate stays in force.
local function open_gate()
  if not gate or opens <= now_us or reason == 'rate' then
    return 0
  end
  if every > 0 then
    move_gate('rate', now_us, every, now_us)
  else
    redis.call('ZREM', lock, gate)
    gate = nil
  end
  return 1
end
