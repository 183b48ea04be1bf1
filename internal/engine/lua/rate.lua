-- rate: the caller's rate counts from now on, unless the present one comes of newer orders. What is saved up, and what
-- is owed, stays as many starts, owed for ten years at most. A section; expects every_now and spare_now (us; every_now
-- is nil: the caller names none), and known_now.
if every_now and known_now >= known then
  known = known_now
  if every ~= every_now or spare ~= spare_now then
    local why, at = 'rate', every_now > 0 and now_us - spare_now or nil
    if at and gates.rate then
      local owed = math.max(gates.rate - now_us, -spare)
      at = math.max(at, now_us + math.min(math.ceil(owed * every_now / every), ten_years * 1000))
    end
    every, spare = every_now, spare_now
    --@include move
  end
end
