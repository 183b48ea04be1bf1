-- deadline: how the end of a lease is stored. Included, never sent alone.
-- Expects: now_us.
--
-- The score is a time of Redis' clock in ms. Its fraction, in 64ths, says how long the
-- lease is at most: with a fraction of n/64, 30 s doubled n times. A length
-- of up to 30 s has no fraction. See lower_far, which relies on it. Another 128th says
-- that the lease was a string, see form.

-- deadline_score: the score of an end that is length ms from now. before is the score that it
-- replaces, if any. The fraction never falls while a member lives: its holder may still
-- believe in the longest length that it ever asked for.
local function deadline_score(length, before)
  local mark = before and before % 1 or 0
  if length > 30000 then
    local doublings = 1
    while 30000 * 2 ^ doublings < length do
      doublings = doublings + 1
    end
    mark = math.max(mark, doublings / 64 + mark * 64 % 1 / 64)
  end
  return string.format(mark > 0 and '%.7f' or '%d', math.ceil(now_us / 1000) + length + mark)
end
