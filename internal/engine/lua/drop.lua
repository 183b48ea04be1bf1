-- drop: give back a lock that is thin, where the server has neither DELEX nor DELIFEQ. One key, as take.
--
-- KEYS[1] word
-- ARGV[1] body
--
-- reply 1: done; 0: it is not thin, or not the caller's: release decides
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
