-- One sync of one pod: renews its lease, records what it holds and wishes, grants what is free.
--
-- Invariant: in whatever order pods sync, the permits granted for a merchant never sum to more
-- than the lowest limit that any of its pods has stated. Calls in flight count as held, also those
-- over the limit; nothing is granted until they end.
--
-- Keys, all of which expire by themselves:
--   pods       set: the pods that may be alive
--   pod:<id>   hash, expires with the pod's lease: "#" its last sequence number, "@" the one
--              that created this hash,
--              "=<merchant>" what it holds: "permits in_flight wanted limit since contended"
--   note:<id>  set: merchants that this pod must sync again: another pod lacks permits
--   known      exists: this Redis has been used by the fleet lately
--   settling   exists: pods may hold permits that are not recorded here; nothing is granted
--   breaker    hash: merchant -> "until pod"; until is 0 when it was closed
--   news       sorted set: merchants by when their breaker was last opened or closed
--   leases     hash: until when each pod's lease runs, and under "" until when nothing is granted
--
-- A Redis that evicts keys may lose any of these by itself. A pod's record that is gone before the
-- end of its lease is a loss, and so is `leases` without which no loss can be told: nothing is granted
-- until every pod has reported anew, or its lease is over.
--
-- Times are milliseconds of Redis's own clock (news: microseconds, made unique).

local DAY = 24 * 60 * 60 * 1000
local MINUTE = 60 * 1000
local MAX_NOTES, MAX_NEWS, MAX_PRUNED = 500, 100, 10
local EXPIRES_WITHIN = 10 -- a key may be gone so many milliseconds before the end of its lease

local pods_key, settling_key, known_key, my_key, my_notes, breaker_key, news_key, leases_key =
  unpack(KEYS)
local prefix, me = ARGV[1], ARGV[2]
local sequence, acknowledged = tonumber(ARGV[3]), tonumber(ARGV[4])
local lease, turn, settle = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local heard, leaving = ARGV[8], ARGV[9] == '1'
local asks, openings, closings = tonumber(ARGV[10]), tonumber(ARGV[11]), tonumber(ARGV[12])
local made_at = tonumber(ARGV[13])
local argument = 13

local function next_argument()
  argument = argument + 1
  return ARGV[argument]
end

local function integer(number)
  return string.format('%.0f', number) -- tostring() would write 1.7e+12
end

local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)

-- An overtaken request (its pod gave up on it and sent another) is out of date.
local stored = tonumber(redis.call('HGET', my_key, '#') or 0)
if sequence <= stored then
  return redis.error_reply('OVERTAKEN a later sync of this pod was here before')
end

-- The first write: a Redis out of memory refuses this one, and none after it.
local is_empty = redis.call('EXISTS', known_key, settling_key) == 0
redis.call('SET', known_key, '1', 'PX', DAY)

-- The pod has an answer that this Redis has no record of: other pods' may be lost too. Or Redis
-- found that out before, and its answer to the pod was lost.
local forgotten = acknowledged > stored
  or (acknowledged > 0 and made_at ~= tonumber(redis.call('HGET', my_key, '@')))
if forgotten or acknowledged == 0 then
  redis.call('DEL', my_key)
  made_at = sequence
end
if forgotten then
  if redis.call('GET', settling_key) ~= 'forgotten' then
    redis.call('SET', settling_key, 'forgotten', 'PX', lease)
  end
elseif settle > 0 and is_empty then
  redis.call('SET', settling_key, 'empty', 'PX', settle)
end
local latest = now + math.max(lease, settle) -- a time behind it was written before the clock was set back
local lasting = math.min(latest, tonumber(redis.call('HGET', leases_key, '') or 0))
if not is_empty and redis.call('EXISTS', leases_key) == 0 then
  lasting = now + lease -- or pods of a release without it are there, which look the same
end
local pods_there = {}
local leases = redis.call('HGETALL', leases_key)
for i = 1, #leases, 2 do
  local id, till = leases[i], tonumber(leases[i + 1])
  if id ~= '' and id ~= me then
    if redis.call('EXISTS', prefix .. 'pod:' .. id) == 1 then
      pods_there[id] = true
    elseif till > latest then
      redis.call('HSET', leases_key, id, integer(latest))
      lasting = latest
    elseif till > now + EXPIRES_WITHIN then
      lasting = math.max(lasting, till)
    else
      redis.call('HDEL', leases_key, id)
    end
  end
end
lasting = math.max(lasting, now + redis.call('PTTL', settling_key))
redis.call('HSET', leases_key, '', integer(lasting)) -- also while no pod is there: it marks no loss
local settling = math.max(0, lasting - now)
for _, id in ipairs(redis.call('SMEMBERS', pods_key)) do
  pods_there[id] = true -- also those of a release without leases
end

local function parse(id, record)
  local permits, in_flight, wanted, limit, since, contended =
    string.match(record, '^(%d+) (%d+) (%d+) (%d+) (%d+) ([01])$')
  if not permits then
    error('the record of pod ' .. id .. ' makes no sense')
  end
  return {
    id = id,
    permits = tonumber(permits),
    in_flight = tonumber(in_flight),
    wanted = tonumber(wanted),
    limit = tonumber(limit),
    since = tonumber(since),
    contended = contended == '1',
  }
end

local function held(row)
  return math.max(row.permits, row.in_flight)
end

-- A pod's rank for the permits that are left when each pod has `level` (or all that it wishes).
-- With more pods than permits the level is 0 and permits rotate: a pod keeps its permit for a
-- turn, then pods that have none come first, the longest waiting before the others.
local function rank(row, level)
  if row.permits <= level then
    return 1, row.since
  end
  local age = now - row.since
  if level > 0 or (age >= 0 and age < turn) then
    return 0, row.since
  end
  return 2, -row.since
end

-- Fair shares of a limit: no pod gets more than it wishes, or more than a pod that wishes more.
local function share_out(rows, limit)
  local by_wish, sum = {}, 0
  for i, row in ipairs(rows) do
    row.needs = math.min(row.wanted, limit)
    row.share = row.needs
    sum = sum + row.needs
    by_wish[i] = row
  end
  if sum <= limit then
    return -- the usual case, and without it the rest would cost most of a sync
  end
  table.sort(by_wish, function(a, b)
    if a.needs ~= b.needs then
      return a.needs < b.needs
    end
    return a.id < b.id
  end)
  local rest, left = limit, #by_wish
  for i, row in ipairs(by_wish) do
    if row.needs * left > rest then
      local level = math.floor(rest / left)
      local greedy = {}
      for j = i, #by_wish do
        local other = by_wish[j]
        other.class, other.key = rank(other, level)
        other.share = level
        greedy[#greedy + 1] = other
      end
      table.sort(greedy, function(a, b)
        if a.class ~= b.class then
          return a.class < b.class
        elseif a.key ~= b.key then
          return a.key < b.key
        end
        return a.id < b.id
      end)
      for j = 1, rest - level * left do
        greedy[j].share = level + 1
      end
      return
    end
    rest, left = rest - row.needs, left - 1
  end
end

-- Which pod gets a free permit first: those that have none, and of them the longest waiting.
local function is_before(a, b)
  if (a.permits == 0) ~= (b.permits == 0) then
    return a.permits == 0
  elseif a.since ~= b.since then
    return a.since < b.since
  end
  return a.id < b.id
end

-- This pod's asks, and all pods' records for these merchants.
local mine, fields = {}, {}
for i = 1, asks do
  local merchant = next_argument()
  mine[i] = {
    id = me,
    merchant = merchant,
    permits = tonumber(next_argument()),
    in_flight = tonumber(next_argument()),
    wanted = tonumber(next_argument()),
    limit = tonumber(next_argument()),
  }
  fields[i] = '=' .. merchant
end

local others, before = {}, {}
if asks > 0 then
  before = redis.call('HMGET', my_key, unpack(fields))
  for id in pairs(pods_there) do
    if id ~= me then
      local records = redis.call('HMGET', prefix .. 'pod:' .. id, '#', unpack(fields))
      if records[1] then
        others[#others + 1] = { id = id, records = records }
      else
        redis.call('SREM', pods_key, id) -- its lease has expired, or it has left
      end
    end
  end
end

local grants = {}
for i = 1, asks do
  local row = mine[i]
  local was = before[i] and parse(me, before[i])
  row.since = now
  if was and (was.permits > 0 or was.wanted > 0) and (was.permits > 0) == (row.permits > 0) then
    row.since = was.since
  end

  local rows, limit, total = { row }, row.limit, held(row)
  for _, other in ipairs(others) do
    local record = other.records[i + 1]
    if record then
      local theirs = parse(other.id, record)
      rows[#rows + 1] = theirs
      limit = math.min(limit, theirs.limit)
      total = total + held(theirs)
    end
  end
  share_out(rows, limit)

  if settling == 0 and row.share > row.permits then
    -- A pod's calls above its permits do not entitle it to permits: it would take back, for its
    -- next call, what it is releasing for other pods.
    local free = limit - (total - held(row))
    for _, each in ipairs(rows) do
      if each ~= row and is_before(each, row) then
        free = free - math.max(0, each.share - held(each)) -- reserved for that pod
      end
    end
    local granted = math.max(row.permits, math.min(row.share, free))
    if row.permits == 0 and granted > 0 then
      row.since = now -- its turn begins
    end
    total = total - held(row)
    row.permits = granted
    total = total + held(row)
  end

  -- Permits lacking beyond the free ones: for other pods' shares, or to get back under the limit.
  local lacking, contended = total - limit, total > limit
  for _, each in ipairs(rows) do
    if each.needs > each.permits then
      contended = true
    end
    if each ~= row then
      lacking = lacking + math.max(0, each.share - held(each))
    end
  end
  local target = row.permits
  if row.share > row.permits then
    target = row.share
  elseif lacking > 0 then
    target = math.max(row.share, row.permits - lacking)
  end
  grants[#grants + 1] = row.permits
  grants[#grants + 1] = target
  grants[#grants + 1] = contended and 1 or 0

  if held(row) == 0 and row.wanted == 0 then
    redis.call('HDEL', my_key, fields[i])
  else
    local flag = contended and '1' or '0'
    local parts = { row.permits, row.in_flight, row.wanted, row.limit, row.since }
    for j, part in ipairs(parts) do
      parts[j] = integer(part)
    end
    redis.call('HSET', my_key, fields[i], table.concat(parts, ' ') .. ' ' .. flag)
  end
  if contended then
    for _, each in ipairs(rows) do
      if each ~= row and not each.contended then -- pods that know sync again by themselves
        redis.call('SADD', prefix .. 'note:' .. each.id, row.merchant)
        redis.call('PEXPIRE', prefix .. 'note:' .. each.id, lease)
      end
    end
  end
end

redis.call('HSET', my_key, '#', integer(sequence), '@', integer(made_at))
redis.call('PEXPIRE', my_key, lease)
redis.call('SADD', pods_key, me)
redis.call('PEXPIRE', pods_key, DAY)
redis.call('HSET', leases_key, me, integer(now + lease))
redis.call('PEXPIRE', leases_key, DAY)
if leaving and redis.call('HLEN', my_key) == 2 then -- else its calls count until they end
  redis.call('DEL', my_key, my_notes)
  redis.call('SREM', pods_key, me)
  redis.call('HDEL', leases_key, me)
end

-- Breakers. Changes are numbered by time, so that a pod can ask for those that are new to it.
local function announce(merchant, till, keep)
  local newest = redis.call('ZREVRANGE', news_key, 0, 0, 'WITHSCORES')
  local number = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
  if newest[2] then
    number = math.max(number, tonumber(newest[2]) + 1)
  end
  redis.call('HSET', breaker_key, merchant, integer(till) .. ' ' .. me)
  redis.call('ZADD', news_key, integer(number), merchant)
  for _, key in ipairs({ breaker_key, news_key }) do
    redis.call('PEXPIRE', key, integer(math.max(redis.call('PTTL', key), keep)))
  end
end

local function last_announced(merchant)
  local entry = redis.call('HGET', breaker_key, merchant)
  if not entry then
    return nil
  end
  local till, origin = string.match(entry, '^(%d+) (.+)$')
  if not till then
    error('the breaker of merchant ' .. merchant .. ' makes no sense')
  end
  return tonumber(till), origin
end

if openings + closings > 0 then
  for _, merchant in ipairs(redis.call('ZRANGE', news_key, 0, MAX_PRUNED - 1)) do
    local till = last_announced(merchant)
    local number = tonumber(redis.call('ZSCORE', news_key, merchant)) / 1000
    if not till or math.max(till, number) + MINUTE < now then
      redis.call('HDEL', breaker_key, merchant)
      redis.call('ZREM', news_key, merchant)
    end
  end
end
for _ = 1, openings do
  local merchant, duration = next_argument(), tonumber(next_argument())
  local till = math.max(now + duration, last_announced(merchant) or 0)
  announce(merchant, till, till - now + MINUTE)
end
for _ = 1, closings do
  announce(next_argument(), 0, MINUTE)
end

local news = {}
local fresh =
  redis.call('ZRANGEBYSCORE', news_key, '(' .. heard, '+inf', 'WITHSCORES', 'LIMIT', 0, MAX_NEWS)
for i = 1, #fresh, 2 do
  local merchant = fresh[i]
  heard = integer(tonumber(fresh[i + 1]))
  local till, origin = last_announced(merchant)
  if till and origin ~= me and (till == 0 or till > now) then
    news[#news + 1] = merchant
    news[#news + 1] = till == 0 and 0 or till - now
  end
end

local pods = redis.call('SCARD', pods_key)
local notes = redis.call('SPOP', my_notes, MAX_NOTES)
return { 'fleet', sequence, made_at, settling, forgotten and 1 or 0, pods, heard, grants, notes, news }
