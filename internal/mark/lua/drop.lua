-- drop: delete a mark if this task has it.
--
-- KEYS[1] mark
-- ARGV[1] body  <queue>/<task> that has the mark
--
-- reply 1 dropped: the mark is deleted
-- reply 0 absent:  no mark, or another one's
if body == ARGV[1] then
  return redis.call('DEL', mark)
end
return 0
