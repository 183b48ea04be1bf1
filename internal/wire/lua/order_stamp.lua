-- order_stamp: a producer is about to enqueue a task of an ordered key. Give it the next place.
--
-- KEYS[1] lock
-- ARGV[1] note      <note> of the task
-- ARGV[2] nonce     of the stamp of <note>
-- ARGV[3] deadline  after which others may look whether the task was enqueued (ms)
-- ARGV[4] cap       how many tasks of the key may be unfinished; 0: any number
--
-- reply ticket: of the stamp
-- reply full:   {how many tasks are unfinished, task to look for, ...}, of the first ones those that should have
--               come by now: they may have been deleted, or never enqueued. As order_act names them
--
-- A stamp that is sent again finds its member, and gets the same ticket.
local lock = KEYS[1]
local note, nonce, cap = ARGV[1], ARGV[2], tonumber(ARGV[4])
--@include clock

--@include deadline

--@include form

local taker, left = string_holder()
if taker then
  widen(taker, left)
end
--@include order

local name = intent_name(nonce, note, ARGV[3])
local known = redis.call('ZSCORE', lock, name)
if known then
  return known - 8e15
end
if cap > 0 then
  local count = redis.call('ZCOUNT', lock, '(8e15', '+inf')
  if count >= cap then
    local full = {count}
    for _, task in ipairs(heads('64')) do
      if due(task) then
        full[#full + 1] = string.format('|l|%s|%s|%d|%s|', task.state, task.nonce, task.ticket, task.seen) .. task.note
      end
    end
    return full
  end
end
local ticket = next_ticket()
local ttl = begin_order(ticket)
redis.call('ZADD', lock, order_score(ticket), name)
if ttl >= 0 and ttl < order_life - 86400000 and redis.pcall('PEXPIRE', lock, string.format('%d', order_life)) ~= 1 then
  -- Redis refused it: for a key that exists the reply is 1 or an error. Without a TTL the stamp could stay for ever.
  redis.call('ZREM', lock, name)
  redis.call('PEXPIRE', lock, string.format('%d', order_life))
end
return ticket
