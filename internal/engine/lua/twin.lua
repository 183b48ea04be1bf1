-- twin: the holder with the note of body, or nil.
-- Where the word says notes, n:<note> in K:info names each of two or more holders by token|owner, a:<note> who stands
-- aside for it.
local function twin(body)
  local note = note_of(body)
  if not noted or count == 0 or note == '' then return nil end
  if first and note_of(first) == note then return first end
  if first and count == 1 then return nil end
  local other = call('HGET', info, 'n:' .. note)
  return other and tonumber(call('ZSCORE', holders, other .. '|' .. note) or 0) > now_ms and other .. '|' .. note or nil
end
