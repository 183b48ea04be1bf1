-- ask: take a slot of the lock, or join its line, or stay in it, or park in it.
-- Idempotent for one body: a resent ask ends as the first one did.
--
-- KEYS[1] lock
-- ARGV[1] body     <token>|<owner>|<note> of the asker
-- ARGV[2] keep     how long the key is to last at least (ms): the lease asked for, and a second
-- ARGV[3] stay=0   life of a line entry without another ask (ms); 0: do not join
-- ARGV[4] limit=1  slots of this lock, as the asker sees it; 0: it is paused, nobody gets one
-- ARGV[5] park=0   1: without a slot, park in the asker's place; 2: ahead of all that are parked; 0: do not
-- ARGV[6] every=0  a rate: from one start to the next, on average (us); 0: none
-- ARGV[7] spare=0  how much of that rate can be saved up (us)
--
-- Arguments at the end that are what the header has after = may be left out.
--
-- reply yours:      fence
-- reply back, yours: {fence, in line for (ms), called since (ms, -1: not), slot idle for (ms), parked}
-- reply busy:       {server time (us), until the first deadline (ms, 0: see below), place in line, holder member}
-- reply back, busy:  the same, {..., in line for (ms), called since (ms, -1: not), parked, 1: the asker is, last taken (us)}
--
-- In a busy reply the gate stands in a holder's place while it is closed and a slot is
-- free, or for a hold: "g:<reason> <opens in (us)>", and its time for the first deadline.
--
-- A busy reply with a 0: slots are free, and dropping dead waiters was cut short.
-- Ask again at once. An asker that does not join is then not parked either.
--
-- An asker whose token says so (see twin) gets no slot beside a holder with its own
-- note: it is answered busy, and that holder.
--
-- "back" is an asker whose note was parked or called before, or is parked now.
-- A paused lock keeps its line: who asks joins it, stays in it or parks in it.
-- Numbers that Redis is to store go through string.format('%d'): Redis itself
-- would print them with %.17g, at three times the cost.
local lock, body = KEYS[1], ARGV[1]
--@include clock

--@include deadline

--@include form

-- An idle lock is no key at all: nothing to purge, nobody to overtake.
local idle = redis.call('EXISTS', lock) == 0
if idle and ARGV[4] ~= '0' then
  redis.call('ZADD', lock, reaching(ARGV[2] - 1000), 'h:' .. body,
    string.format('-%d', 1e15 + now_us), 'f')
  local life = ARGV[2]
  if ARGV[6] then -- the first start of a rate; see gate
    redis.call('ZADD', lock, string.format('%.6f', (now_us - (ARGV[7] or 0) + ARGV[6]) / 1e6),
      string.format('g:rate:%d:%d:%d:%d', ARGV[6], ARGV[6], ARGV[7] or 0, now_us))
    life = math.max(life, math.ceil(ARGV[6] / 1000) + 1000)
  end
  if redis.pcall('PEXPIRE', lock, life) ~= 1 then
    redis.call('DEL', lock) -- a key without a TTL could stay for ever
    redis.call('PEXPIRE', lock, life) -- fails again, and says why
  end
  return now_us
end
local taker, left, beyond = alone()
if taker == body then
  -- Ours already: a resent SET or ask. See below for a sorted set.
  redis.call('PEXPIRE', lock, math.max(left, ARGV[2] - 1000))
  return now_us
elseif taker and (ARGV[3] or '0') == '0' and (ARGV[4] or '1') == '1' and (ARGV[5] or '0') == '0' then
  if beyond then
    redis.call('PEXPIRE', lock, left)
  end
  return {now_us, math.max(1, left), 0, 'h:' .. taker}
elseif taker then
  widen(taker, left)
end
local ttl, stay, limit, park = ARGV[2] - 1000, tonumber(ARGV[3] or 0), tonumber(ARGV[4] or 1), tonumber(ARGV[5] or 0) > 0

--@include line

local held, holder, deadline = holders()
set_rate(tonumber(ARGV[6] or 0), tonumber(ARGV[7] or 0))
local mine = 'h:' .. body
local stored = holder == mine and deadline or held > 1 and redis.call('ZSCORE', lock, mine)
if stored then
  -- Ours already: a resent ask, or one that crossed a grant. The asker counts
  -- its deadline from this ask, so the stored one is made to reach that far.
  local reach = math.ceil(now_us / 1000) + ttl
  keep(ttl)
  if reach > tonumber(stored) then
    redis.call('ZADD', lock, reaching(ttl, stored), mine)
  end
  return raise()
end

local free, fence, more, beside = 0, nil, false, nil
if held < limit then
  free, fence, more = grant(held, nil, body, ttl)
  if fence then
    return fence
  end
  beside = free > 0 and twin(body) or nil
  if free == 0 or beside then
    held, holder, deadline = holders() -- others, who were granted it just now
  end
end
if more and stay == 0 then
  return {now_us, 0, redis.call('ZCOUNT', lock, '2e15', '(4e15'), holder or ''}
end
-- A note may have any text in it, the separator too.
local note = string.sub(body, string.find(body, '|', string.find(body, '|', 1, true) + 1, true) + 1)
local away = note ~= '' and redis.call('ZSCORE', lock, 'p:' .. note)
local entry, alive = 'e:' .. body, 'd:' .. body
if free > 0 and not beside then
  keep(ttl)
  redis.call('ZREM', lock, entry, alive)
  if not away then
    return hold(body, ttl)
  end
  local inline, called = back(note, away)
  local idle, since = 0, redis.call('ZSCORE', lock, 'i')
  if since then
    idle = now_ms + since + 3e14
  end
  redis.call('ZREM', lock, 'i')
  return {hold(body, ttl), inline, called, idle, redis.call('ZCOUNT', lock, '4e15', '(6e15')}
end

-- Among several holders, one with the asker's own note tells most, and then the gate.
local same = beside or note ~= '' and (held > 1 or park) and noted(body, note)
local wait
if gate and opens > now_us and not beside and (held < limit or reason == 'hold') then
  holder = same or string.format('g:%s %d', reason, opens - now_us)
  wait = math.ceil((opens - now_us) / 1000)
else
  holder = same or holder
  -- Without a holder there is a free slot, or more to drop, or the lock is paused.
  wait = more and 0 or deadline and math.ceil(deadline - now_ms) or -1
end

local inline, called = 0, -1
if idle and (park or stay > 0) then
  -- A paused lock that was no key: it is one from now on, and so keep finds it.
  redis.call('ZADD', lock, '-1000000000000000', 'f')
  if redis.pcall('PEXPIRE', lock, ARGV[2]) ~= 1 then
    redis.call('DEL', lock) -- a key without a TTL could stay for ever
    redis.call('PEXPIRE', lock, ARGV[2]) -- fails again, and says why
  end
end
if every > 0 and not gate and (park or stay > 0) then
  -- Nobody has started under this rate yet: who is granted a slot by a script that does
  -- not know it, a release or a look, counts by this.
  redis.call('ZREM', lock, '') -- removes nothing: after it a full Redis lets the ZADD pass
  move_gate('rate', now_us - spare, every, now_us)
end
local first = away and away % 2e15 or now_us - 1.6e15 -- the ticket of one who is not in line yet
if ARGV[5] == '2' then
  local ahead = redis.call('ZRANGEBYSCORE', lock, '4e15', '(6e15', 'WITHSCORES', 'LIMIT', '0', '1')[2]
  first = math.min(first, tonumber(ahead or 6e15) - 4e15 - 1)
end
local place, before = 0, '(4e15'
if park then
  local was = redis.call('ZSCORE', lock, entry)
  local ticket = was and was - 2e15 or first
  if not same then
    keep_parked()
  end
  if away then
    inline, called = back(note, away)
  end
  redis.call('ZREM', lock, entry, alive)
  if not same then -- nobody parks behind what has its own note
    local score = string.format('%d', 4e15 + ticket)
    redis.call('ZADD', lock, score, 'p:' .. note)
    inline = math.floor((now_us - 1.6e15 - ticket) / 1000)
    before = '(' .. score
    place = redis.call('ZCOUNT', lock, '6e15', '8e15')
  end
elseif stay > 0 then
  local score, stale = string.format('%d', 2e15 + first), string.format('-%d', now_ms + stay)
  keep(stay)
  -- In line already: the place stays, and only the life is renewed.
  if redis.call('ZADD', lock, 'NX', score, entry, stale, alive) < 2 then
    score = redis.call('ZSCORE', lock, entry)
    redis.call('ZADD', lock, stale, alive)
  end
  if away then
    inline, called = back(note, away)
  end
  before = '(' .. score
end
place = place + redis.call('ZCOUNT', lock, '2e15', before)
if away or park then
  local parked = 0
  if park and not same then
    parked = 1
  end
  return {now_us, wait, place, holder or '', inline, called, redis.call('ZCOUNT', lock, '4e15', '(6e15'), parked,
    taken_at(holder or '', deadline, -(redis.call('ZSCORE', lock, 'f') or 0) - 1e15)}
end
return {now_us, wait, place, holder or ''}
