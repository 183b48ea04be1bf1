-- rate: the asker's rate counts from now on. A section; expects every_now and spare_now (us).
if every ~= every_now or spare ~= spare_now then
  every, spare = every_now, spare_now
  local why, at = 'rate', every > 0 and (gates.rate or now_us - spare) or nil
  --@include move
end
