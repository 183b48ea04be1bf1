-- clock: the time of the server, for all scripts that use it. Included, never sent alone.
--
-- Scores have bands by their kind, and tickets count from September 2020. Before that
-- (a host without a clock boots in 1970) they would leave their bands, and one lock
-- would have several holders.
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now_ms = math.floor(now_us / 1000)
if now_us < 1.6e15 then
  return redis.error_reply("CLOCK the clock of Redis stands before September 2020; set it: until then no lock is given")
end
