-- format: say which format this process stores its data in, unless processes with another
-- one are there.
--
-- KEYS[1] format
-- ARGV[1] mine   1: the number of the caller's format; see VERSIONING.md
-- ARGV[2] length for how long that stands (ms)
--
-- reply 0: done, or the number of the format that others use; -1: something else is stored
local format, mine, length = KEYS[1], ARGV[1], ARGV[2]

local theirs = redis.call('GET', format)
if theirs and theirs ~= mine then
  return tonumber(theirs) or -1
end
redis.call('SET', format, mine, 'PX', length)
return 0
