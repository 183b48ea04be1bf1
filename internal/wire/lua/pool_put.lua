-- pool_put: add values to a pool, and grant free values to waiters. A value that the pool has
-- already, free or taken, stays as it is.
--
-- KEYS[1] pool
-- ARGV[1] value  a <value>, escaped; and as many more as there are, or none
--
-- reply values added
local pool = KEYS[1]
--@include clock

--@include pool_line

-- PERSIST comes before the values: if Redis refuses it to a user without the right, no value is
-- put into a pool that expires as its waiters do.
redis.call('PERSIST', pool)
purge()
local added = 0
for _, value in ipairs(ARGV) do
  if not redis.call('ZSCORE', pool, 't:' .. value) then
    put(value)
    added = added + 1
  end
end
grant()
settle()
return added
