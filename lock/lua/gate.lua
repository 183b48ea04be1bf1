-- gate: the earliest time of the key's next start. Included by line, never sent alone.
-- Expects: lock, now_us, keep_key.
--
-- The gate is one member. Its score is the time in seconds, exact to a microsecond, in a band
-- below that of the holders. Its name is g:<reason>:<most>:<every>:<spare>:<full>
--   reason  what moved it: rate, cooldown or hold
--   most    how far ahead it can be (us); further ahead, Redis' clock was stepped back
--   every   the rate: so many us from one start to the next; 0: no rate
--   spare   so many us of rate that was not used can be used later: (burst - 1) * every
--   full    since when starts add up (us): none before it can be given back
-- The rate is GCRA with this time as its state: a start at now moves it to
-- max(time, now - spare) + every. A time before now - spare says nothing, and is not kept.
local gate, opens, reason, most, every, spare, full = nil, 0, nil, 0, 0, 0, 0

-- move_gate: store the gate. The key outlives what the gate has to say. Callers have
-- written before, or the ZREM has Redis accept the ZADD when its memory is full.
local function move_gate(why, at, ahead, since)
  local name = string.format('g:%s:%d:%d:%d:%d', why, ahead, every, spare, since)
  keep_key(math.max(0, math.ceil((at + spare - now_us) / 1000)))
  if gate ~= name then
    redis.call('ZREM', lock, gate or '')
  end
  redis.call('ZADD', lock, string.format('%.6f', at / 1e6), name)
  gate, opens, reason, most, full = name, at, why, ahead, since
end

-- read_gate: take the gate's member and its score apart.
local function read_gate(member, score)
  gate, opens = member, math.floor(score * 1e6 + 0.5)
  reason, most, every, spare, full = string.match(member, '^g:(%l+):(%d+):(%d+):(%d+):(%d+)$')
  most, every, spare, full = tonumber(most), tonumber(every), tonumber(spare), tonumber(full)
  if opens > now_us + most + 1000000 then
    redis.call('ZREM', lock, '')
    move_gate(reason, now_us + most, most, now_us)
  end
end

-- set_rate: the rate is as the asker sees it, from now on. Callers have read the gate.
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

-- count_start: a slot is given to somebody who starts now.
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

-- give_back: the start of a holder with that fence (1: it is not known) did not happen.
-- A start from before the last time at which nothing was left to save up has run out.
local function give_back(fence)
  if gate and reason == 'rate' and every > 0 and (fence == 1 or fence >= full) then
    move_gate('rate', opens - every, every, full)
  end
end

-- close_gate: nobody starts for length us from now. A hold stays one until it is over.
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

-- open_gate: end a hold or cooldown; 1: there was one.
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
