local before = settled_before()
if before then return before end
local known = read_lease(id)
if known then return finish(DONE, known) end
if most_leases > 0 and redis.call('HLEN', KEYS[2]) >= most_leases then return finish(CROWDED) end
local refused = DONE
for index = 1, 2 do
  if bursts[index] > 0 then
    if amounts[index] > bursts[index] then return finish(NEVER) end
    if amounts[index] > get('level', index) then refused = REFUSED end
  end
end
if refused == REFUSED then return finish(REFUSED) end
take(true)
return finish(DONE, amounts)
