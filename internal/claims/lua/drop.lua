-- drop: undo the take of a task that will not be enqueued.
--
-- KEYS[1] claim
-- ARGV[1] body  <queue>/<task>
--
-- reply 1 dropped: its claim is over, or it is not the newer task any more
-- reply 0 absent:  it had no part in the claim
if body and newer == name(ARGV[1]) then
  newer = '-'
elseif body == ARGV[1] then
  deadline = now_ms
else
  return 0
end
write()
return 1
