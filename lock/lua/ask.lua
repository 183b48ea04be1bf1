-- ask: take a slot of the lock, or join its line, or stay in it, or park in it.
-- Idempotent for one body: an ask that is sent again has the effect of the first one, though
-- its reply may have a higher fence.
--
-- KEYS[1] lock
-- ARGV[1] body     <token>|<owner>|<note> of the asker. Only the note may contain a |
-- ARGV[2] keep     minimum life of the key (ms): lease + 1000
-- ARGV[3] stay=0   life of a line entry without another ask (ms); 0: do not join
-- ARGV[4] limit=1  slots of this lock, as the asker sees it; 0: it is paused, no asker gets one
-- ARGV[5] park=0   1: without a slot, park in the asker's place; 2: the same, but an asker without a place parks ahead of all parked notes; 0: do not
-- ARGV[6] every=0  a rate: from one start to the next, on average (us); 0: none
-- ARGV[7] spare=0  how much of that rate can be saved up (us)
--
-- Trailing arguments equal to their default (after =) may be omitted. An asker that parks has
-- a note: lockOrPark refuses a lock without one.
--
-- reply yours:          fence
-- reply returned, yours: {fence, in line for (ms), called ... ms ago (-1: not called), how long the slot was free (ms), notes parked}
-- reply busy:           {server time (us), ms until the first deadline (0: ask again at once; -1: no holder), place in line, holder member}
-- reply returned, busy:  the same, {..., in line for (ms), called ... ms ago (-1: not called), notes parked, 1: the asker is parked now, last taken (us)}
--
-- "returned, yours" is the reply if the asker's note was parked or called before, and "returned,
-- busy" is so too. "returned, busy" is also the reply to each ask with park, whether it parked
-- the note or not, unless the first 0 below applies. A holder that asks again gets "yours".
--
-- "in line for" is the age of the note's ticket. A note that parked ahead of the others has a
-- ticket just before theirs, so its age is that of the first of them.
--
-- The holder member is one of several. While the gate is closed and a slot is free, or during a
-- Hold, it is "g:<reason> <opens in (us)>", and the ms are those until the gate opens. The gate
-- is the earliest time of the key's next start (gate.lua): a rate, a Hold or a Cooldown moves
-- it. But if a holder has the asker's note, and the script had to look, the reply names it.
--
-- A 0 for the ms means: slots may be free, but this call has dropped 64 dead waiters, and no
-- call drops more. Then an asker that does not join is not parked either. A -1 means: no holder,
-- because the lock is paused.
--
-- If the token has `~` (OnePerNote), the asker gets no slot while a holder has the same
-- note (see twin in line.lua). The busy reply names that holder.
--
-- A paused lock keeps its line: an asker joins it, stays in it or parks in it.
--
-- The key has one of two forms (form.lua). While a mutex has one holder and nobody else wants
-- it, the key may be a plain string: the holder's body. Otherwise it is a sorted set of these
-- members. docs/redis.md says more. A ticket is an arrival in us, counted from 1.6e15 us
-- (September 2020).
--   f          -(1e15 + last fence in us)
--   i          -(3e14 + ms): a slot has been free since then
--   l:<note>   -(1e14 + ms): when the note was called; -(2e14 + ms) once the call has lapsed
--   d:<body>   -ms: until when the entry e:<body> lives
--   g:...      the gate, in seconds: 1e9 to 1e11
--   h:<body>   a holder, and its deadline in ms: 1e11 to 1e14
--   e:<body>   an entry in the line: 2e15 + ticket
--   p:<note>   a parked note: 4e15 + ticket; a called one: 6e15 + ticket
--
-- Integers that Redis is to store go through string.format('%d'): Redis itself
-- would print them with %.17g, at three times the cost.
local lock, body = KEYS[1], ARGV[1]
--@include clock

--@include deadline

--@include form

-- An idle lock is no key at all: no holder to purge, no waiter to overtake. This reply and the
-- two below for a string leave the rest of the script out: an argument that is added has to be
-- added to them too.
local no_key = redis.call('EXISTS', lock) == 0
if no_key and ARGV[4] ~= '0' then
  redis.call('ZADD', lock, deadline_score(ARGV[2] - 1000), 'h:' .. body,
    string.format('-%d', 1e15 + now_us), 'f')
  local life = ARGV[2]
  if (ARGV[6] or '0') ~= '0' then -- the first start of a rate; see gate
    redis.call('ZADD', lock, string.format('%.6f', (now_us - (ARGV[7] or 0) + ARGV[6]) / 1e6),
      string.format('g:rate:%d:%d:%d:%d', ARGV[6], ARGV[6], ARGV[7] or 0, now_us))
    life = math.max(life, math.ceil(ARGV[6] / 1000) + 1000)
  end
  if redis.pcall('PEXPIRE', lock, life) ~= 1 then
    -- Redis refused it: for a key that exists the reply is 1 or an error. Delete the key, which
    -- without a TTL could stay for ever. The second PEXPIRE is refused too, and that error is
    -- the reply.
    redis.call('DEL', lock)
    redis.call('PEXPIRE', lock, life)
  end
  return now_us
end
-- taker: the body of the holder of a string, or nil; left: ms until its deadline; too_long: the
-- key lasts longer than its lease can, because Redis' clock was stepped back.
local taker, left, too_long = string_holder()
if taker == body then
  -- The asker holds it already: a SET or an ask was sent again. stored, below, is the same case
  -- for a sorted set.
  redis.call('PEXPIRE', lock, math.max(left, ARGV[2] - 1000))
  return now_us
elseif taker and (ARGV[3] or '0') == '0' and (ARGV[4] or '1') == '1' and (ARGV[5] or '0') == '0' then
  -- A try that finds the lock held. It leaves the string as it is.
  if too_long then
    redis.call('PEXPIRE', lock, left) -- left is the longest time that the lease can last
  end
  return {now_us, math.max(1, left), 0, 'h:' .. taker}
elseif taker then
  widen(taker, left) -- to a sorted set, which others can join
end
local ttl, stay, limit, park = ARGV[2] - 1000, tonumber(ARGV[3] or 0), tonumber(ARGV[4] or 1), tonumber(ARGV[5] or 0) > 0

--@include line

local held, holder, deadline = holders()
set_rate(tonumber(ARGV[6] or 0), tonumber(ARGV[7] or 0))
local mine = 'h:' .. body
local stored = holder == mine and deadline or held > 1 and redis.call('ZSCORE', lock, mine)
if stored then
  -- The asker holds it already: this ask was sent again, or a release granted the slot while
  -- this ask was on its way. The asker counts its deadline from this ask, so the stored deadline
  -- must not be before that.
  local reach = math.ceil(now_us / 1000) + ttl
  keep_key(ttl)
  if reach > tonumber(stored) then
    redis.call('ZADD', lock, deadline_score(ttl, stored), mine)
  end
  return raise_fence()
end

-- more_dead: 64 dead waiters were dropped, and there may be more. twin_holder: the holder
-- because of whose note OnePerNote refuses the asker a slot.
local free, fence, more_dead, twin_holder = 0, nil, false, nil
if held < limit then
  free, fence, more_dead = grant(held, nil, body, ttl)
  if fence then
    return fence
  end
  twin_holder = free > 0 and twin(body) or nil
  if free == 0 or twin_holder then
    held, holder, deadline = holders() -- again: grant may have made waiters holders
  end
end
if more_dead and stay == 0 then
  return {now_us, 0, redis.call('ZCOUNT', lock, '2e15', '(4e15'), holder or ''}
end
-- The note is all that follows the second |.
local note = string.sub(body, string.find(body, '|', string.find(body, '|', 1, true) + 1, true) + 1)
-- old_score: that of the note's p: member, if the note was parked or called before.
local old_score = note ~= '' and redis.call('ZSCORE', lock, 'p:' .. note)
local entry, alive = 'e:' .. body, 'd:' .. body
if free > 0 and not twin_holder then
  keep_key(ttl)
  redis.call('ZREM', lock, entry, alive)
  if not old_score then
    return take_slot(body, ttl)
  end
  local inline, called = remove_parked(note, old_score)
  local free_for, since = 0, redis.call('ZSCORE', lock, 'i')
  if since then
    free_for = now_ms + since + 3e14 -- since is -(3e14 + ms)
  end
  redis.call('ZREM', lock, 'i')
  return {take_slot(body, ttl), inline, called, free_for, redis.call('ZCOUNT', lock, '4e15', '(6e15')}
end

-- The reply names one of several holders: one with the asker's note if the script has to look
-- for it, else the gate, else the holder with the first deadline.
local same_note = twin_holder or note ~= '' and (held > 1 or park) and noted(body, note)
local wait
if gate and opens > now_us and not twin_holder and (held < limit or reason == 'hold') then
  holder = same_note or string.format('g:%s %d', reason, opens - now_us)
  wait = math.ceil((opens - now_us) / 1000)
else
  holder = same_note or holder
  wait = more_dead and 0 or deadline and math.ceil(deadline - now_ms) or -1
end

local inline, called = 0, -1
if no_key and (park or stay > 0) then
  -- A paused lock that was no key becomes one here, since keep_key needs a key.
  redis.call('ZADD', lock, '-1000000000000000', 'f')
  if redis.pcall('PEXPIRE', lock, ARGV[2]) ~= 1 then
    redis.call('DEL', lock) -- Redis refused it; see the PEXPIRE above
    redis.call('PEXPIRE', lock, ARGV[2])
  end
end
if every > 0 and not gate and (park or stay > 0) then
  -- Nobody has started under this rate yet. Store the rate now: a release, or the script call,
  -- may grant the slot, and neither has the rate among its arguments.
  move_gate('rate', now_us - spare, every, now_us)
end
-- ticket: the place of an asker that is not in line yet. A note that returns keeps its own:
-- scores of parked and called notes are 4e15 and 6e15 above it.
local ticket = old_score and old_score % 2e15 or now_us - 1.6e15
if ARGV[5] == '2' then -- just before the first parked note; without one, ahead changes nothing
  local ahead = redis.call('ZRANGEBYSCORE', lock, '4e15', '(6e15', 'WITHSCORES', 'LIMIT', '0', '1')[2]
  ticket = math.min(ticket, tonumber(ahead or 6e15) - 4e15 - 1)
end
local place, before = 0, '(4e15'
if park then
  local entry_score = redis.call('ZSCORE', lock, entry)
  ticket = entry_score and entry_score - 2e15 or ticket -- in line already: the place stays
  if not same_note then
    keep_parked()
  end
  if old_score then
    inline, called = remove_parked(note, old_score)
  end
  redis.call('ZREM', lock, entry, alive)
  if not same_note then -- no note parks behind a holder with the same note
    local score = string.format('%d', 4e15 + ticket)
    redis.call('ZADD', lock, score, 'p:' .. note)
    inline = math.floor((now_us - 1.6e15 - ticket) / 1000) -- also for a note that parks for the first time
    before = '(' .. score
    place = redis.call('ZCOUNT', lock, '6e15', '8e15') -- called notes are before every parked one
  end
elseif stay > 0 then
  local score, stale = string.format('%d', 2e15 + ticket), string.format('-%d', now_ms + stay)
  keep_key(stay)
  -- In line already: the place stays, and only the life is renewed.
  if redis.call('ZADD', lock, 'NX', score, entry, stale, alive) < 2 then
    score = redis.call('ZSCORE', lock, entry)
    redis.call('ZADD', lock, stale, alive)
  end
  if old_score then
    inline, called = remove_parked(note, old_score)
  end
  before = '(' .. score
end
place = place + redis.call('ZCOUNT', lock, '2e15', before)
if old_score or park then
  local parked = 0
  if park and not same_note then
    parked = 1
  end
  return {now_us, wait, place, holder or '', inline, called, redis.call('ZCOUNT', lock, '4e15', '(6e15'), parked,
    taken_at(holder or '', deadline, -(redis.call('ZSCORE', lock, 'f') or 0) - 1e15)}
end
return {now_us, wait, place, holder or ''}
