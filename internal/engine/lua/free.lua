-- free: the slots that are free. A section.
local free = values and limit > 0 and call('ZCARD', values) or math.max(0, limit - count)
