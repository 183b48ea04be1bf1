-- write: write the word, if it has changed. A section.
if changed then
  local text = '+' .. int(fence) .. ' ' .. int(good) .. (gated and ' gate' or '') .. (parks and ' parked' or '')
    .. (ordered and ' order' or '') .. (noted and ' notes' or '')
  if moves then
    call('SET', word, text, 'PXAT', int(good))
  else
    call('SET', word, text, 'KEEPTTL')
  end
end
