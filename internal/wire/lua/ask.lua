-- ask: take a slot of the lock, or join its line, or stay in it, or park in it.
--
-- KEYS[1] lock
-- ARGV[1] body     <token>|<owner>|<note> of the asker. Only the note may contain a |
-- ARGV[2] keep     the asker's lease + 1000 (ms); a sorted set lives at least as long
-- ARGV[3] stay=0   life of a line entry without another ask (ms); 0: do not join
-- ARGV[4] limit=1  slots of this lock, as the asker sees it; 0: it is paused, no asker gets one
-- ARGV[5] park=0   without a slot: 1: park in the asker's place; 2: the same, but an asker without
--                  a place parks ahead of all parked notes; 0: do not park. No note parks behind
--                  a holder with the same note, an earlier run of the same work: its caller
--                  asks again later
-- ARGV[6] every=0  a rate: from one start to the next, on average (us); 0: none
-- ARGV[7] spare=0  how much of that rate can be saved up (us)
--
-- Trailing arguments equal to their default (after =) may be omitted. An asker that parks has
-- a note: lockOrPark refuses a lock without one.
--
-- Terms
--   note    names the asker's work, and is empty for none. Work that returns has the same note
--           and another token.
--   park    keep the note's place in line. Nobody waits for it.
--   call    have a process bring parked work back, because a slot is free or soon will be. If the
--           work does not ask in time, its call is overdue: the note keeps its place, and others are
--           called beside it. Of more than 64 overdue calls the first made lapse: their notes park
--           at the end (calls.lua).
--   place   the order is: entries of waiters, called notes, parked notes; each by ticket. Entries
--           are granted slots. A note has no slot reserved: its work asks when it is back.
--   ticket  when the place was taken, in us from 1.6e15 us on (September 2020). An entry, and a
--           note that was parked or called before, keep theirs.
--
-- reply yours:           fence
-- reply returned, yours: {fence, in line for (ms), called ago (ms), slot free for (ms), notes parked}
-- reply busy:            {server time (us), wait (ms), place, named}
-- reply returned, busy:  {the four of busy, in line for (ms), called ago (ms), notes parked, parked, last taken (us)}
--
-- A try is an ask with neither stay nor park. An asker whose note was parked or called before gets
-- a "returned" reply, and so does each ask with park that is busy. A holder that asks again gets "yours".
--
--   wait           until the first deadline, or until the gate opens if that keeps the asker out.
--                  -1: no holder, because the lock is paused
--   place          how many places are before the asker's; with neither stay nor park: the entries
--   named          what keeps the asker out, the first of these that there is: a holder with the
--                  asker's note, if one was looked for; the gate, as "g:<reason> <for (us)>", if it is closed and a slot is free,
--                  or if CloseGate closed it: the strongest reason, and how long that one lasts; the
--                  holder with the first deadline, as h:<body>; empty
--   in line for    the age of the note's ticket. A note that parked ahead has the age of the first
--                  of the others. 0 for a try that is busy: its note is left as it is
--   called ago     -1: the note was not called, or a try is busy
--   slot free for  before the asker took it; 0: not known
--   notes parked   all that are parked now; called ones do not count
--   parked         1: this ask has parked the note; 0: it has not
--   last taken     when somebody last took a slot
--
-- An ask may be sent again with the same body: it takes no second slot and no second place. It may
-- renew a deadline or an entry, and park a called note again, in its place. The second reply may have
-- another form or a higher fence: the first is "returned, yours", say, and the second "yours".
--
-- If the token has `~` (OnePerNote), the asker gets no slot while a holder has the same
-- note (see twin in line.lua). The busy reply names that holder.
--
-- A paused lock keeps its line: an asker joins it, stays in it or parks in it.
--
-- The key has one of two forms (form.lua). While a mutex has one holder and nobody else wants
-- it, the key may be a plain string: the holder's body. It has the lease as its TTL, and stores no
-- fence: the fence is the time when it was taken, as is the first fence of a new key. If Redis'
-- clock steps back meanwhile, a later holder may get a lower fence (docs/guarantees.md).
-- Otherwise the key is a sorted set of these members; docs/redis.md says more.
--   f          -(1e15 + last fence in us)
--   i          -(3e14 + ms): a slot has been free since then
--   l:<note>   -(1e14 + ms): when the note was called; -(2e14 + ms) once the call has lapsed
--   d:<body>   -ms: until when the entry e:<body> lives; its fraction is the waiter's limit, see mark
--   g:<reason>:<most>..., up to three
--              the gate, see gate.lua: when that reason ends, in seconds: 1e9 to 1e11
--   h:<body>   a holder, and its deadline in ms: 1e11 to 1e14
--   e:<body>   an entry, that is, a waiter's place: 2e15 + ticket
--   p:<note>   a parked note: 4e15 + ticket; a called one: 6e15 + ticket
-- These ranges only tell the kinds apart: a called note is before a parked one, see place.
-- The gate is the earliest time of the key's next start: a rate, CloseGate or a Cooldown moves it.
--
-- Policies are not here: policy.go has them. A new way to wait needs its argument here, its reply
-- in kind.go and in handleReply (refresh.go), its members above, and a case in grant (line.lua).
--
-- Integers that Redis is to store go through string.format('%d'): Redis itself
-- would print them with %.17g, at three times the cost.
local lock, body = KEYS[1], ARGV[1]
local lease = ARGV[2] - 1000 -- ms
--@include clock
-- gives now_us: the time of Redis (us)

--@include deadline
-- gives deadline_score(length, before): the score of a holder's deadline, length ms from now

--@include form
-- gives string_holder(), widen(body, left) and taken_at(member, deadline, fence)

-- 1. No key: an idle lock. There is no holder to purge and no waiter to overtake. This reply and
-- the two below for a string leave the rest of the script out: an argument that is added has to
-- be added to them too.
local no_key = redis.call('EXISTS', lock) == 0
if no_key and ARGV[4] ~= '0' then
  redis.call('ZADD', lock, deadline_score(lease), 'h:' .. body,
    string.format('-%d', 1e15 + now_us), 'f')
  local life = ARGV[2]
  if (ARGV[6] or '0') ~= '0' then -- the first start of a rate; see count_start in gate.lua
    redis.call('ZADD', lock, string.format('%.6f', (now_us - (ARGV[7] or 0) + ARGV[6]) / 1e6),
      string.format('g:rate:%d:%d:%d:%s', ARGV[6], ARGV[6], ARGV[7] or 0, string.match(body, '^[^|]*')))
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

-- 2. A string: a mutex with one holder. taker: the holder's body, or nil; left: ms until its
-- deadline; too_long: the key lasts longer than its lease can, as Redis' clock was stepped back.
local taker, left, too_long = string_holder()
if taker == body then
  -- The asker holds it already: a SET or an ask was sent again. stored, below, is the same case
  -- for a sorted set.
  redis.call('PEXPIRE', lock, math.max(left, lease))
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
local stay, limit, park = tonumber(ARGV[3] or 0), tonumber(ARGV[4] or 1), tonumber(ARGV[5] or 0) > 0

--@include line
-- gives now_ms; holders, grant, take_slot, raise_fence: slots; twin, noted, note_of, remove_parked:
-- notes; keep_key, keep_parked: the key's TTL. From gate: set_rate, move_gate, closed_by, and the
-- variables gates, opens (us), every and spare, which holders sets

-- 3. The asker holds the lock already.
local held, holder, deadline = holders() -- holder: the one with the first deadline
set_rate(tonumber(ARGV[6] or 0), tonumber(ARGV[7] or 0))
local mine = 'h:' .. body
local stored -- the asker's deadline, if it is a holder
if holder == mine then
  stored = deadline
elseif held > 1 then
  stored = redis.call('ZSCORE', lock, mine)
end
if stored then
  -- This ask was sent again, or a release granted the slot while this ask was on its way. The
  -- asker counts its deadline from this ask, so the stored deadline must not be before that.
  local reach = math.ceil(now_us / 1000) + lease
  keep_key(lease)
  if reach > tonumber(stored) then
    redis.call('ZADD', lock, deadline_score(lease, stored), mine)
  end
  return raise_fence()
end

-- 4. A slot is free: waiters in line come first, and the asker is one of them if it has an entry.
-- free: the slots left for an asker that is not in line. fence: that of the asker, if its own
-- entry was granted a slot.
-- twin_holder: the holder because of whose note OnePerNote refuses the asker a slot.
local free, fence, twin_holder = 0, nil, nil
if held < limit then
  free, fence = grant(held, nil, body, lease) -- nil: the first waiter is not known
  if fence then
    return fence
  end
  if free > 0 then
    twin_holder = twin(body, limit)
  end
  if free == 0 or twin_holder then
    held, holder, deadline = holders() -- again: grant may have made waiters holders
  end
end
local note = note_of(body)
-- old_score: that of the note's p: member, if the note was parked or called before.
local old_score = note ~= '' and redis.call('ZSCORE', lock, 'p:' .. note)
local entry, alive = 'e:' .. body, 'd:' .. body
if free > 0 and not twin_holder then
  keep_key(lease)
  local since = old_score and redis.call('ZSCORE', lock, 'i')
  redis.call('ZREM', lock, entry, alive, 'i') -- i: it is not known of another slot that may be free
  if not old_score then
    return take_slot(body, lease)
  end
  local inline, called = remove_parked(note, old_score)
  local free_for = 0
  if since then
    free_for = now_ms + since + 3e14 -- since is -(3e14 + ms)
  end
  return {take_slot(body, lease), inline, called, free_for, redis.call('ZCOUNT', lock, '4e15', '(6e15')}
end

-- 5. Busy: what the reply names, and until when. same_note: a holder with the asker's note, which is
-- named before a cooldown and a rate. Without park, a single holder is named anyway.
local why, closed_for = closed_by()
if held >= limit and why ~= 'closed' then
  why = nil -- no slot is free: the holders keep the asker out
end
local same_note = twin_holder
if not same_note and note ~= '' and (held > 1 or park or held == 1 and why and why ~= 'closed') then
  same_note = noted(body, note)
end
local wait
if why and not same_note then
  holder = string.format('g:%s %d', why, closed_for)
  wait = math.ceil(closed_for / 1000)
else
  holder = same_note or holder
  if deadline then
    wait = math.ceil(deadline - now_ms) -- 1 and up: holders has removed deadlines up to now_ms
  else
    wait = -1
  end
end

-- 6. Park, or join the line or stay in it, or neither.
local inline, called = 0, -1
if no_key and (park or stay > 0) then
  -- A paused lock that was no key becomes one here, since keep_key needs a key.
  redis.call('ZADD', lock, '-1000000000000000', 'f')
  if redis.pcall('PEXPIRE', lock, ARGV[2]) ~= 1 then
    redis.call('DEL', lock) -- Redis refused it; see the PEXPIRE above
    redis.call('PEXPIRE', lock, ARGV[2])
  end
end
if every > 0 and not gates.rate and (park or stay > 0) then
  -- Nobody has started under this rate yet. Store the rate now: release.lua or call.lua may
  -- grant the slot, and neither has the rate among its arguments.
  move_gate('rate', now_us - spare, every)
end
-- ticket: the place of an asker without an entry.
local ticket = now_us - 1.6e15
if old_score then
  ticket = old_score % 2e15 -- the scores of parked and called notes are 4e15 and 6e15 above it
elseif ARGV[5] == '2' then -- just before the first parked note, if there is one
  local first = redis.call('ZRANGEBYSCORE', lock, '4e15', '(6e15', 'WITHSCORES', 'LIMIT', '0', '1')[2]
  if first then
    ticket = math.min(ticket, first - 4e15 - 1)
  end
end
local place, before = 0, '(4e15' -- before: the asker's place as a bound of ZCOUNT
if park then
  local entry_score = redis.call('ZSCORE', lock, entry)
  if entry_score then -- a waiter that parks keeps its place
    ticket = entry_score - 2e15
  end
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
  local score, stale = string.format('%d', 2e15 + ticket), mark(stay)
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
