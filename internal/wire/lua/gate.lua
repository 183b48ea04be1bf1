-- gate: the earliest time of the key's next start. Included by line, never sent alone.
-- Expects: lock, now_us, keep_key.
--
-- Up to three members of the lock close the gate, each with its own reason. The score of a member is
-- the time at which it lets starts through again, in seconds, exact to a microsecond; all such scores
-- are below those of holders. most: the longest time from now until then (us); if the score is further
-- ahead, Redis' clock was stepped back.
--   g:closed:<most>                         CloseGate
--   g:cooldown:<most>                       Cooldown
--   g:rate:<most>:<every>:<spare>:<token>   a rate
--     every  the time from one start to the next (us)
--     spare  how much unused time of the rate a later burst can use (us): (burst - 1) * every
--     token  of the last start, which alone can be refunded; empty: of none
-- The rate is GCRA, with its member's time as its state: a start at now moves the time to
-- max(time, now - spare) + every. A time before now - spare has no effect, so Redis may forget it.
--
-- gates: the members by reason, each {name, time (us), most}. opens: the latest of their times, when
-- the gate opens (us). gate: how many members there are. memory: until when the key must stay (us).
local gates, opens, gate, memory = {}, 0, 0, 0
local every, spare, last_start = 0, 0, ''

local function note_gate(why, name, at, most)
  gates[why] = name and {name, at, most}
  opens, gate, memory = 0, 0, 0
  for reason, member in pairs(gates) do
    opens, gate = math.max(opens, member[2]), gate + 1
    memory = math.max(memory, member[2] + (reason == 'rate' and spare or 0))
  end
end

-- move_gate: store the member of that reason, and keep the key for as long as it has an effect. A full
-- Redis accepts the ZADD only after another write of the script, which the ZREM is.
local function move_gate(why, at, most)
  local name = string.format('g:%s:%d', why, most)
  if why == 'rate' then
    name = string.format('%s:%d:%d:%s', name, every, spare, last_start)
  end
  local old = gates[why]
  note_gate(why, name, at, most)
  keep_key(math.max(0, math.ceil((memory - now_us) / 1000)))
  redis.call('ZREM', lock, old and old[1] ~= name and old[1] or '')
  redis.call('ZADD', lock, string.format('%.6f', at / 1e6), name)
end

-- read_gate: set the variables above. A member that opens later than it can is from before a step of
-- Redis' clock, and is moved to the latest possible time. A closing or cooldown that is over goes.
local function read_gate()
  local found = redis.call('ZRANGEBYSCORE', lock, '1e9', '(1e11', 'WITHSCORES', 'LIMIT', '0', '3')
  for i = 1, #found, 2 do
    local name, at = found[i], math.floor(found[i + 1] * 1e6 + 0.5)
    local why, most, rate = string.match(name, '^g:(%l+):(%d+)(.*)$')
    most = tonumber(most)
    if why == 'rate' then
      every, spare, last_start = string.match(rate, '^:(%d+):(%d+):(.*)$')
      every, spare = tonumber(every), tonumber(spare)
    end
    if at <= now_us and why ~= 'rate' then
      redis.call('ZREM', lock, name)
    else
      note_gate(why, name, at, most)
      if at > now_us + most + 1000000 then
        last_start = ''
        move_gate(why, now_us + most, most)
      end
    end
  end
end

-- closed_by: the strongest reason for which the gate is closed, and for how long (us); nil if it is open.
local function closed_by()
  for _, why in ipairs({'closed', 'cooldown', 'rate'}) do
    if gates[why] and gates[why][2] > now_us then
      return why, gates[why][2] - now_us
    end
  end
end

-- set_rate: use the asker's rate from now on. Callers have read the gate.
local function set_rate(its_every, its_spare)
  if every == its_every and spare == its_spare then
    return
  end
  every, spare, last_start = its_every, its_spare, ''
  local rate = gates.rate
  if rate and every > 0 then
    move_gate('rate', rate[2], math.max(rate[3], every))
  elseif rate then
    redis.call('ZREM', lock, rate[1])
    note_gate('rate')
  end
end

-- count_start: charge the rate for a start, because the holder with that body gets a slot now.
local function count_start(body)
  if every > 0 then
    last_start = string.match(body, '^[^|]*')
    move_gate('rate', math.max(gates.rate and gates.rate[2] or 0, now_us - spare) + every, every)
  end
end

-- refund: undo the charge for the start of the holder with that body, because its work did not begin. Only
-- the last start is refunded: then the rate is as if it had not been. A start that others came after
-- stays charged.
local function refund(body)
  if gates.rate and last_start == string.match(body, '^[^|]*') then
    last_start = ''
    move_gate('rate', gates.rate[2] - every, every)
  end
end

-- close_gate: close the gate for length us from now. It never opens sooner than it would have before.
local function close_gate(why, length)
  local at = math.max(gates[why] and gates[why][2] or 0, now_us + length)
  move_gate(why, at, at - now_us)
end

-- open_gate: end a closing and a cooldown. Returns 1 if there was one, else 0. A rate stays in force.
local function open_gate()
  local ended = 0
  for _, why in ipairs({'closed', 'cooldown'}) do
    if gates[why] then
      redis.call('ZREM', lock, gates[why][1])
      ended = gates[why][2] > now_us and 1 or ended
      note_gate(why)
    end
  end
  return ended
end
