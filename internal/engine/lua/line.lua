-- line: who comes first: waiters, those that stand aside, parked notes, tasks in order; no dead waiters. Reads only.
--
-- KEYS 1 to 6    see head; in others than pools KEYS[7] may be order
-- ARGV[1] most   how many of each to look at
--
-- reply {kind, ticket (us), what, ...}, where kind is w: a waiter, and what <owner>|<note>; p: a parked note; c: a
-- called one; o: a task, and what its record
local call, reply = redis.call, {}
local last = string.format('%d', ARGV[1] - 1)
local time = call('TIME')
local now_ms = math.floor(time[1] * 1000 + time[2] / 1000)
local function add(kind, ticket, what)
  reply[#reply + 1], reply[#reply + 2], reply[#reply + 3] = kind, ticket, what
end
local function read(key, prefix)
  local found, fields = call('ZRANGE', key, '0', last, 'WITHSCORES'), {}
  for i = 1, #found, 2 do fields[#fields + 1] = prefix .. found[i] end
  return found, #fields > 0 and call('HMGET', KEYS[6], unpack(fields)) or {}
end

local found, records = read(KEYS[3], '')
for i, record in ipairs(records) do
  local till, rest = string.match(record or '', '^(%d+) %d+ %d+ (.*)$')
  if till and tonumber(till) > now_ms then add('w', string.format('%d', found[i * 2] % 2 ^ 52), rest) end
end
local called = {}
for _, note in ipairs(call('ZRANGE', KEYS[5], '0', '99')) do called[note] = true end
found = call('ZRANGE', KEYS[4], '0', last, 'WITHSCORES')
for i = 1, #found, 2 do add(called[found[i]] and 'c' or 'p', found[i + 1], found[i]) end
if KEYS[8] then
  found, records = read(KEYS[7], 'o:')
  for i, record in ipairs(records) do
    if record then add('o', found[i * 2], record) end
  end
end
return reply
