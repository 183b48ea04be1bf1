-- gate: the earliest time of the key's next start. Included by line, never sent alone.
-- Expects: lock, now_us, keep_key.
--
-- The gate is one member of the lock. Its score is the time at which the gate opens, in seconds,
-- exact to a microsecond; all such scores are below those of holders. Its name is
-- g:<reason>:<most>:<every>:<spare>:<full>
--   reason  what moved the gate last: rate, cooldown or hold
--   most    the longest time from now until the gate opens (us); if the score is further
--           ahead, Redis' clock was stepped back
--   every   the rate: the time from one start to the next (us); 0: no rate
--   spare   how much unused time of the rate a later burst can use (us): (burst - 1) * every
--   full    when the whole burst was available last (us); an earlier start is not charged any more
-- The rate is GCRA, with the gate's time as its state: a start at now moves the time to
-- max(time, now - spare) + every. A time before now - spare has no effect, so Redis may forget it.
local gate, opens, reason, most, every, spare, full = nil, 0, nil, 0, 0, 0, 0

-- move_gate: store the gate, and keep the key for as long as the gate has an effect. A full
-- Redis accepts the ZADD only after another write of the script: callers have made one, or the
-- ZREM is one.
local function move_gate(why, at, ahead, since)
  local name = string.format('g:%s:%d:%d:%d:%d', why, ahead, every, spare, since)
  keep_key(math.max(0, math.ceil((at + spare - now_us) / 1000)))
  if gate ~= name then
    redis.call('ZREM', lock, gate or '')
  end
  redis.call('ZADD', lock, string.format('%.6f', at / 1e6), name)
  gate, opens, reason, most, full = name, at, why, ahead, since
end

-- read_gate: set the variables above from the gate's member and score. If the gate opens later
-- than it can, Redis' clock was stepped back, and the gate is moved to the latest possible time.
local function read_gate(member, score)
  gate, opens = member, math.floor(score * 1e6 + 0.5)
  reason, most, every, spare, full = string.match(member, '^g:(%l+):(%d+):(%d+):(%d+):(%d+)$')
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

-- count_start: charge the rate for a start, because a new holder gets a slot now.
local function count_start()
  if every == 0 then
    return
  end
  local from = now_us - spare
  if gate and opens >= from then
    move_gate('rate', opens + every, every, full)
  else
    move_gate('rate', from + every, every, now_us)
  end
end

-- give_back: undo the charge for the start of the holder with that fence (1: not known), because
-- its work did not begin. A start from before `full` is not charged any more.
local function give_back(fence)
  if gate and reason == 'rate' and every > 0 and (fence == 1 or fence >= full) then
    move_gate('rate', opens - every, every, full)
  end
end

-- close_gate: close the gate for length us from now. It never opens sooner than it would have
-- before. While a hold lasts, the reason stays hold.
local function close_gate(why, length)
  local at = now_us + length
  if gate and opens > now_us then
    if opens > at and why ~= 'hold' then
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
