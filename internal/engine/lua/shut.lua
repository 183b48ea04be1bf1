-- shut: the gate that keeps the asker out, if one does. A section; expects same; sets named and wait.
if opens > now_us and not same then
  for _, why in ipairs({'closed', 'cooldown', 'rate'}) do
    if gates[why] and gates[why] > now_us and (why == 'closed' or count < limit) then
      named, wait = 'g:' .. why .. ' ' .. int(gates[why] - now_us), math.ceil((gates[why] - now_us) / 1000)
      break
    end
  end
end
