local before = settled_before()
if before then return before end
local lease = read_lease(id)
local reserved, refunded, grants, late = amounts, {0, 0}, {now, amounts[1]}, '1'
if lease then
  reserved, refunded, grants, late = {lease[1], lease[2]}, give_back(id, lease, amounts, moves), lease[7], '0'
else
  for index = 1, 2 do
    if bursts[index] > 0 and moves then move(index, -amounts[index]) end
  end
end
redis.call('HSET', KEYS[6], id, cmsgpack.pack({
  reserved[1], reserved[2], amounts[1], amounts[2], refunded[1], refunded[2],
}))
redis.call('ZADD', KEYS[7], now, id)
local taken = {}
for index, value in ipairs(grants) do taken[index] = string.format('%.0f', value) end
redis.call(
  'XADD', KEYS[8], '*', 'lease', id, 'settled_us', string.format('%.0f', now), 'late', late,
  'reserved', string.format('%.0f', reserved[1]), 'charged', string.format('%.0f', amounts[1]),
  'refunded', string.format('%.0f', refunded[1]), 'kv_charged', string.format('%.0f', amounts[2]),
  'grants', table.concat(taken, ','), 'entry', ARGV[12]
)
return finish(DONE, reserved, amounts, refunded)
