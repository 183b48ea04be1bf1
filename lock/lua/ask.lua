-- ask: take a slot of the lock, or join its line, or stay in it, or park in it.
-- Idempotent for one body: an ask that is sent again ends as the first one did.
--
-- KEYS[1] lock
-- ARGV[1] body     <token>|<owner>|<note> of the asker
-- ARGV[2] keep     minimum life of the key (ms): lease + 1000
-- ARGV[3] stay=0   life of a line entry without another ask (ms); 0: do not join
-- ARGV[4] limit=1  slots of this lock, as the asker sees it; 0: it is paused, no asker gets one
-- ARGV[5] park=0   1: without a slot, park in the asker's place; 2: ahead of all parked notes; 0: do not
-- ARGV[6] every=0  a rate: from one start to the next, on average (us); 0: none
-- ARGV[7] spare=0  how much of that rate can be saved up (us)
--
-- Trailing arguments equal to their default (after =) may be omitted.
--
-- reply yours:      fence
-- reply back, yours: {fence, in line for (ms), called ... ms ago (-1: not called), how long the slot was free (ms), notes parked}
-- reply busy:       {server time (us), ms until the first deadline (0: ask again at once; -1: no holder), place in line, holder member}
-- reply back, busy:  the same, {..., in line for (ms), called ... ms ago (-1: not called), notes parked, 1: the asker is parked now, last taken (us)}
--
-- back: the asker's note was parked or called before, or it asked to park. Whether it is
-- parked now is a value of its own.
--
-- While the gate is closed and a slot is free, or during a Hold, a busy reply names the gate
-- in place of a holder: "g:<reason> <opens in (us)>". The ms until the first deadline are
-- then those until the gate opens. See gate.lua: the gate is the earliest time of the key's
-- next start; a rate, a Hold or a Cooldown moves it.
--
-- A 0 for the deadline means that slots are free, but that the script dropped its most of 64
-- dead waiters: ask again at once. An asker that does not join is then not parked either.
-- A -1 means that there is no holder: the lock is paused.
--
-- If the token has `~` (OnePerNote), the asker gets no slot while a holder has the same
-- note (see twin). The busy reply names that holder.
--
-- A paused lock keeps its line: an asker joins it, stays in it or parks in it.
--
-- Members and their bands of scores: docs/redis.md. In short: h: a holder, g: the gate, e: an
-- entry in the line, d: the life of that entry, p: a note that is parked (4e15) or called
-- (6e15), l: when it was called, i: since when a slot is free, f: the last fence.
--
-- Numbers that Redis is to store go through string.format('%d'): Redis itself
-- would print them with %.17g, at three times the cost.
local lock, body = KEYS[1], ARGV[1]
--@include clock

--@include deadline

--@include form

-- An idle lock is no key at all: no holder to purge, no waiter to overtake.
local no_key = redis.call('EXISTS', lock) == 0
if no_key and ARGV[4] ~= '0' then
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
local taker, left, beyond = string_holder()
if taker == body then
  -- The asker holds it already: a SET or ask that was sent again. See below for a sorted set.
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
  -- The asker holds it already: an ask that was sent again, or that crossed a grant. The
  -- asker counts its deadline from this ask, so the stored one is made to reach that far.
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
    held, holder, deadline = holders() -- waiters that grant gave a slot
  end
end
if more and stay == 0 then
  return {now_us, 0, redis.call('ZCOUNT', lock, '2e15', '(4e15'), holder or ''}
end
-- A note may contain any text, also the separator.
local note = string.sub(body, string.find(body, '|', string.find(body, '|', 1, true) + 1, true) + 1)
-- old_score: of the note's p: member, if the note was parked or called before.
local old_score = note ~= '' and redis.call('ZSCORE', lock, 'p:' .. note)
local entry, alive = 'e:' .. body, 'd:' .. body
if free > 0 and not beside then
  keep(ttl)
  redis.call('ZREM', lock, entry, alive)
  if not old_score then
    return take_slot(body, ttl)
  end
  local inline, called = back(note, old_score)
  local free_for, since = 0, redis.call('ZSCORE', lock, 'i')
  if since then
    free_for = now_ms + since + 3e14
  end
  redis.call('ZREM', lock, 'i')
  return {take_slot(body, ttl), inline, called, free_for, redis.call('ZCOUNT', lock, '4e15', '(6e15')}
end

-- The reply names one of several holders: one with the asker's note if there is any, then the
-- gate, then the one with the first deadline.
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
if no_key and (park or stay > 0) then
  -- A paused lock that was no key becomes one here, so that keep finds it.
  redis.call('ZADD', lock, '-1000000000000000', 'f')
  if redis.pcall('PEXPIRE', lock, ARGV[2]) ~= 1 then
    redis.call('DEL', lock) -- a key without a TTL could stay for ever
    redis.call('PEXPIRE', lock, ARGV[2]) -- fails again, and says why
  end
end
if every > 0 and not gate and (park or stay > 0) then
  -- No one has started under this rate yet. Store the rate now: a release, or a look at
  -- parked tasks, may grant the slot and does not know the rate.
  redis.call('ZREM', lock, '') -- removes nothing: after it a full Redis lets the ZADD pass
  move_gate('rate', now_us - spare, every, now_us)
end
-- ticket: the place of an asker that is not in line yet. A note that returns keeps its own.
local ticket = old_score and old_score % 2e15 or now_us - 1.6e15
if ARGV[5] == '2' then
  local ahead = redis.call('ZRANGEBYSCORE', lock, '4e15', '(6e15', 'WITHSCORES', 'LIMIT', '0', '1')[2]
  ticket = math.min(ticket, tonumber(ahead or 6e15) - 4e15 - 1)
end
local place, before = 0, '(4e15'
if park then
  local was = redis.call('ZSCORE', lock, entry)
  ticket = was and was - 2e15 or ticket
  if not same then
    keep_parked()
  end
  if old_score then
    inline, called = back(note, old_score)
  end
  redis.call('ZREM', lock, entry, alive)
  if not same then -- no note parks behind a holder with the same note
    local score = string.format('%d', 4e15 + ticket)
    redis.call('ZADD', lock, score, 'p:' .. note)
    inline = math.floor((now_us - 1.6e15 - ticket) / 1000)
    before = '(' .. score
    place = redis.call('ZCOUNT', lock, '6e15', '8e15')
  end
elseif stay > 0 then
  local score, stale = string.format('%d', 2e15 + ticket), string.format('-%d', now_ms + stay)
  keep(stay)
  -- In line already: the place stays, and only the life is renewed.
  if redis.call('ZADD', lock, 'NX', score, entry, stale, alive) < 2 then
    score = redis.call('ZSCORE', lock, entry)
    redis.call('ZADD', lock, stale, alive)
  end
  if old_score then
    inline, called = back(note, old_score)
  end
  before = '(' .. score
end
place = place + redis.call('ZCOUNT', lock, '2e15', before)
if old_score or park then
  local parked = 0
  if park and not same then
    parked = 1
  end
  return {now_us, wait, place, holder or '', inline, called, redis.call('ZCOUNT', lock, '4e15', '(6e15'), parked,
    taken_at(holder or '', deadline, -(redis.call('ZSCORE', lock, 'f') or 0) - 1e15)}
end
return {now_us, wait, place, holder or ''}
