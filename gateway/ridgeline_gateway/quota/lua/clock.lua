-- Redis' own time: gateways' clocks need not agree.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
