-- write: change one order, and tell all who listen.
--
-- KEYS[1] controls
-- ARGV[1] field  the name of its kind, a space, and the target: <scope>, or <scope>|<v1>|...
-- ARGV[2] order  <json>; empty: none
-- ARGV[3] only   if the field has this; empty: whatever it has
--
-- reply what the field had; empty: nothing
local controls, field, order, only = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local was = redis.call('HGET', controls, field) or ''
if only ~= '' and was ~= only then
  return was
end
if order == '' then
  redis.call('HDEL', controls, field)
else
  redis.call('HSET', controls, field, order)
end
-- pcall: an ACL without the channel must not abort the script after its writes.
redis.pcall('PUBLISH', string.match(controls, '^[^{]*') .. 'control', field)
return was
