-- forget: the one with that note is over; should the note come again, it is new.
--
-- KEYS[1] arrivals
-- ARGV[1] note  <note> of the one that is over
--
-- reply known:   1
-- reply unknown: 0
local arrivals, note = KEYS[1], ARGV[1]

redis.call('ZREM', arrivals, 's:' .. note)
return redis.call('ZREM', arrivals, 'a:' .. note)
