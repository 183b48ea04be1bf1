-- settle: the keys of an empty lock go, with a gate when it is forgotten; or write the word. A section.
if count == 0 and not parks and not ordered and not (values and call('ZCARD', values) > 0)
  and (nobody or call('EXISTS', line) == 0) then
  if forgotten <= now_us then
    call('UNLINK', unpack(KEYS))
    changed = false
  else
    good, changed, moves = math.floor(forgotten / 1000) + 1, true, true
    for i = 2, #KEYS do call('PEXPIREAT', KEYS[i], int(good)) end
  end
end
--@include write
