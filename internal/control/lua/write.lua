-- write: change the entry of one target, unless somebody else has changed it meanwhile, and tell all who listen.
--
-- KEYS[1] controls
-- ARGV[1] target  <scope>, or <scope>|<v1>|...
-- ARGV[2] before  the entry as it was read: <json>; empty: there was none
-- ARGV[3] after   the entry that takes its place: <json>; empty: none
--
-- reply 1: done; 0: the entry is another one by now, and stays
local controls, target, before, after = KEYS[1], ARGV[1], ARGV[2], ARGV[3]

if (redis.call('HGET', controls, target) or '') ~= before then
  return 0
end
if after == '' then
  redis.call('HDEL', controls, target)
else
  redis.call('HSET', controls, target, after)
end
-- pcall: an ACL without the channel must not abort the script after its writes.
redis.pcall('PUBLISH', string.match(controls, '^[^{]*') .. 'control', target)
return 1
