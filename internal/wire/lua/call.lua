-- call: check a line with parked work: grant free slots to waiters, call parked notes whose
-- turn has come, and store what a Caller answered for a note.
--
-- KEYS[1] lock
-- ARGV[1] limit    slots of this lock, as the caller sees it; 0: it is paused
-- ARGV[2] inbound  how many called and waiting entries there should be; 0: call nobody
-- ARGV[3] life     how long a called note may take to arrive (ms)
-- ARGV[4] note     of a called entry, or empty: <note>
-- ARGV[5] fate     of that entry: 0: none is given; 1: it will not arrive, drop it; 2: not now, to the end of the line
--
-- reply calls:   {slots free now, parked, until the first deadline or the gate opens (ms, -1: neither), called note, ...}
-- reply nothing: slots free now; nothing is parked or called
local lock, limit, note, fate = KEYS[1], tonumber(ARGV[1]), ARGV[4], ARGV[5]
--@include clock

--@include deadline

--@include form

if string_holder() then
  return math.max(0, limit - 1) -- with a string nothing is parked
end
--@include line
--@include calls

local held = holders()
if fate ~= '0' then
  -- Only while the note is called: if it arrived meanwhile, this fate is outdated.
  local score = redis.call('ZSCORE', lock, 'p:' .. note)
  if score and tonumber(score) >= 6e15 then
    redis.call('ZREM', lock, 'p:' .. note, 'l:' .. note)
    if fate == '2' then
      redis.call('ZADD', lock, string.format('%d', parked_end()), 'p:' .. note)
    end
  end
end
local free = grant(held)
local inbound = tonumber(ARGV[2])
if fate == '0' and free == 0 then
  inbound = 0 -- a check while all slots are taken repeats calls, but makes no new ones, which would be in vain
end
local called = calls(free, free, inbound, tonumber(ARGV[3]), false)
if called then
  return called
end
tidy()
shorten()
return free
