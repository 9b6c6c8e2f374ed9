-- One tenant's account; the steps are those of account.py, which a property test holds this to. Numbers are whole and
-- below 2^53, so Lua keeps them exactly. Every key lies in the tenant's slot.
--
-- KEYS  1 account (hash)   2 leases (hash)   3, 4 leases that can give back tokens, KV (sorted by order)
--       5 leases by expiry   6 settled (hash)   7 settled by time   8 ledger (stream)
-- ARGV  1 lease id   2 lease's length, us   3 how long to remember a settlement, us
--       4, 5 rate and burst of tokens   6, 7 of KV (0: unlimited)   8 debt cap   9 most leases (0: unlimited)
--       10, 11 amounts   12 the ledger's entry   13 the server's run   14 '1': recovered   15 when levels were seen, us
local DONE, REFUSED, NEVER, CROWDED, SETTLED = 0, 1, 2, 3, 4
local MILLION = 1000000
local FORGET_AT_ONCE = 32
local RESTORE_US = 60000000
local id, lease_us, remember_us = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local rates = {tonumber(ARGV[4]), tonumber(ARGV[6])}
local bursts = {tonumber(ARGV[5]), tonumber(ARGV[7])}
local debt_cap, most_leases = tonumber(ARGV[8]), tonumber(ARGV[9])
local amounts = {tonumber(ARGV[10]), tonumber(ARGV[11])}
local run, moves, seen_us = ARGV[13], ARGV[14] ~= '1', tonumber(ARGV[15])

local account = {}
do
  local held = redis.call('HGETALL', KEYS[1])
  for index = 1, #held, 2 do
    account[held[index]] = held[index] == 'run' and held[index + 1] or tonumber(held[index + 1])
  end
end
local function get(name, index) return account[name .. index] or 0 end
local function put(name, index, value) account[name .. index] = value end

local function move(index, by)
  put('level', index, get('level', index) + by)
  if now - account['run_began'] < RESTORE_US then put('moved', index, get('moved', index) + by) end
end

-- A lease is {reserved tokens, reserved KV, refundable tokens, refundable KV, expires, order, {time, tokens, ...}};
-- refundable is false where the resource had no limit.
local function read_lease(lease_id)
  local packed = redis.call('HGET', KEYS[2], lease_id)
  return packed and cmsgpack.unpack(packed)
end
local function write_lease(lease_id, lease)
  redis.call('HSET', KEYS[2], lease_id, cmsgpack.pack(lease))
  redis.call('ZADD', KEYS[5], lease[5], lease_id)
  for index = 1, 2 do
    local refundable = lease[2 + index]
    if refundable and refundable > 0 then
      redis.call('ZADD', KEYS[2 + index], lease[6], lease_id)
    else
      redis.call('ZREM', KEYS[2 + index], lease_id)
    end
  end
end
local function remove_lease(lease_id)
  redis.call('HDEL', KEYS[2], lease_id)
  for key = 3, 5 do redis.call('ZREM', KEYS[key], lease_id) end
end

local function refill(index, elapsed)
  local rate, burst, level = get('rate', index), get('burst', index), get('level', index)
  if burst == 0 or elapsed <= 0 then return end
  local seconds = math.floor(elapsed / MILLION)
  local rest = elapsed - seconds * MILLION
  -- Products are kept below 2^53 by parts.
  if seconds > (burst - level) / rate then
    level, account['carry' .. index] = burst, 0
  else
    local high = math.floor(rate / MILLION)
    local low = (rate - high * MILLION) * rest + get('carry', index)
    level = level + rate * seconds + high * rest + math.floor(low / MILLION)
    put('carry', index, low % MILLION)
    if level >= burst then
      level = burst
      put('carry', index, 0)
    end
  end
  put('level', index, level)
end

local function shrink(index)
  if get('burst', index) == 0 then return end
  local excess = get('level', index) + get('refundable', index) - get('burst', index)
  while excess > 0 do
    local oldest = redis.call('ZRANGE', KEYS[2 + index], 0, 0)[1]
    if not oldest then return end
    local lease = read_lease(oldest)
    local taken = math.min(excess, lease[2 + index])
    lease[2 + index] = lease[2 + index] - taken
    write_lease(oldest, lease)
    put('refundable', index, get('refundable', index) - taken)
    excess = excess - taken
  end
end

local function give_back(lease_id, lease, charged, moving)
  remove_lease(lease_id)
  local refunded = {}
  for index = 1, 2 do
    local refundable = lease[2 + index]
    put('held', index, get('held', index) - lease[index])
    local rest = lease[index] - charged[index]
    if refundable then
      put('refundable', index, get('refundable', index) - refundable)
      rest = math.min(rest, refundable)
      if moving then move(index, rest) end
    end
    refunded[index] = math.max(0, rest)
  end
  return refunded
end

local function begin()
  local before = account['updated'] or 0
  local elapsed = now - before
  if now < before then now = before end
  if run ~= (account['run'] or '') then
    account['run'], account['run_began'], account['known'] = run, now, before
    put('moved', 1, 0)
    put('moved', 2, 0)
  end
  account['run_began'] = account['run_began'] or 0
  account['updated'] = now
  for index = 1, 2 do
    refill(index, elapsed)
    if rates[index] ~= get('rate', index) or bursts[index] ~= get('burst', index) then
      local begins = get('burst', index) == 0
      put('rate', index, rates[index])
      put('burst', index, bursts[index])
      put('carry', index, 0)
      if bursts[index] > 0 then
        put('level', index, begins and bursts[index] or math.min(get('level', index), bursts[index]))
      end
    end
    shrink(index)
  end
  for _, gone in ipairs(redis.call('ZRANGEBYSCORE', KEYS[5], '-inf', now)) do
    give_back(gone, read_lease(gone), {0, 0}, true)
  end
  local old = redis.call('ZRANGEBYSCORE', KEYS[7], '-inf', now - remember_us, 'LIMIT', 0, FORGET_AT_ONCE)
  for _, lease_id in ipairs(old) do
    redis.call('HDEL', KEYS[6], lease_id)
    redis.call('ZREM', KEYS[7], lease_id)
  end
end

local function hold(lease, index, amount, moving)
  lease[index] = lease[index] + amount
  put('held', index, get('held', index) + amount)
  if lease[2 + index] then
    lease[2 + index] = lease[2 + index] + amount
    put('refundable', index, get('refundable', index) + amount)
    if moving then move(index, -amount) end
  end
end

local function take(moving)
  local lease = {0, 0, bursts[1] > 0 and 0, bursts[2] > 0 and 0, now + lease_us, account['order'] or 0, {now, amounts[1]}}
  account['order'] = (account['order'] or 0) + 1
  for index = 1, 2 do hold(lease, index, amounts[index], moving) end
  write_lease(id, lease)
  for index = 1, 2 do shrink(index) end
end

local function finish(status, reserved, charged, refunded)
  local words = {}
  for name, value in pairs(account) do
    words[#words + 1] = name
    words[#words + 1] = name == 'run' and value or string.format('%.0f', value)
  end
  redis.call('HSET', KEYS[1], unpack(words))
  reserved, charged, refunded = reserved or {0, 0}, charged or {0, 0}, refunded or {0, 0}
  local function level(index) return bursts[index] > 0 and get('level', index) or 0 end
  return {
    status, reserved[1], reserved[2], charged[1], charged[2], refunded[1], refunded[2], level(1), level(2),
    get('carry', 1), get('carry', 2), get('held', 1), get('held', 2), redis.call('HLEN', KEYS[2]), now,
  }
end

local function settled_before()
  local packed = redis.call('HGET', KEYS[6], id)
  if not packed then return nil end
  local held = cmsgpack.unpack(packed)
  return finish(SETTLED, {held[1], held[2]}, {held[3], held[4]}, {held[5], held[6]})
end

begin()
