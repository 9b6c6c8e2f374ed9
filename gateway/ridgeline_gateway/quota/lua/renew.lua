local before = settled_before()
if before then return before end
local lease = read_lease(id)
if not lease then
  take(moves)
  return finish(DONE, amounts)
end
lease[5] = now + lease_us
local extra, status = amounts[1] - lease[1], DONE
if extra > 0 then
  if moves and bursts[1] > 0 and get('level', 1) - extra < -debt_cap then
    status = REFUSED
  else
    local grants = lease[7]
    grants[#grants + 1] = now
    grants[#grants + 1] = extra
    hold(lease, 1, extra, moves)
  end
end
write_lease(id, lease)
shrink(1)
return finish(status, lease)
