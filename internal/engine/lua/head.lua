-- head: reads what there is of a lock. A section.
--
-- A section: "--@include name" stands for the text of name.lua, which uses and sets the locals that its first lines
-- name. As functions, which capture locals, sections cost 13 to 17 us a script; what several places call is one.
-- A number as an argument of redis.call costs more than a text.
--
-- Expects w, what GET of the word has replied, and limit, the slots of the lock as the caller sees it; 0: it is paused;
-- nil: the script only reads.
--
-- The word of a fat lock is "+<last fence> <until (ms)> <what there is>"; all its keys expire at until. What there is:
-- gate, parked, order, notes, each with a space before. notes: no two holders have the same note, see twin.
local word, holders, line, parked, called, info = unpack(KEYS)
local order, marks = KEYS[8] and KEYS[7], table.remove(KEYS, 8)
local values = not order and KEYS[7]
local call = redis.call
local slack, parked_for, month, ten_years = 600000, 900000, 2592000000, 315360000000 -- ms
local aside = 4503599627370496 -- see grant; exact until the year 2112
local function int(n) return string.format('%d', n) end
local function token_of(body) return string.match(body, '^[^|]*') end
local function note_of(body) return string.match(body, '^[^|]*|[^|]*|(.*)$') end

local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now_ms = math.floor(now_us / 1000)
local function ms_since(us) return math.max(0, math.floor((now_us - us) / 1000)) end

local fence, good, gated, parks, ordered, noted = 0, 0, false, false, false, false -- the word's
local changed, moves = false, false -- the word is to be written; and until is another
local f, g, what = string.match(w or '', '^%+(%d+) (%d+)(.*)$')
if f then
  fence, good = tonumber(f), tonumber(g)
  if what ~= '' then
    gated = string.find(what, ' gate', 1, true)
    parks = string.find(what, ' parked', 1, true)
    ordered = string.find(what, ' order', 1, true)
    noted = string.find(what, ' notes', 1, true)
  end
elseif limit then
  -- One that is thin, or not there, becomes fat: the holder gets its TTL's deadline, and a millisecond for the time
  -- between TIME and PTTL. If K:info is there already, the word was lost, and the records count.
  good, changed, moves = now_ms + slack, true, true
  if w then
    if not note_of(w) then error('the word of this lock is none of a lock') end
    local left = call('PTTL', word)
    if left < 0 then left = 30000 end
    local taken = tonumber(string.match(w, '^[^.|]*%.(%w%w%w%w%w%w%w%w%w%w)') or '', 36) -- by its holder's clock
    good, fence = good + left, taken and taken < now_us and taken or now_us
    call('ZADD', holders, int(now_ms + left + 1), w)
    call('PEXPIREAT', holders, int(good))
  end
  if call('HSET', info, 'fat', int(now_ms)) == 0 then
    good = math.max(good, now_ms + call('PTTL', info))
    gated, parks = true, call('EXISTS', parked) == 1
    ordered = order and call('EXISTS', order) == 1
    for i = 2, #KEYS do call('PEXPIREAT', KEYS[i], int(good)) end
  end
  call('PEXPIREAT', info, int(good))
end

--@include gate
-- Holders whose lease has ended leave, 100 at most.
-- count: how many hold the lock; first: who has the first deadline, if that is known; deadline: it (ms).
local count, first, deadline
local found = call('ZRANGE', holders, '0', '1', 'WITHSCORES')
if found[2] and tonumber(found[2]) <= now_ms and limit then
  --@include leave
  count = 0
  for _, body in ipairs(call('ZRANGEBYSCORE', holders, '-inf', int(now_ms), 'LIMIT', '0', '100')) do leave(body) end
  found = call('ZRANGEBYSCORE', holders, '(' .. int(now_ms), '+inf', 'WITHSCORES', 'LIMIT', '0', '2')
end
count, first, deadline = #found / 2, found[1], tonumber(found[2])
if count == 2 or not limit then count = call('ZCOUNT', holders, '(' .. int(now_ms), '+inf') end

local function holds(body)
  return first == body or count > 1 and tonumber(call('ZSCORE', holders, body) or 0) > now_ms
end

local function leave_line(token)
  call('HDEL', info, token)
  return call('ZREM', line, token) == 1
end
