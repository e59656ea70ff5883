-- Single flight between processes: one loads a value, and none while it is young.
--
-- Keys, for each value two:
--   value   hash: data, version, at (when it was loaded), young (how long it is not loaded again),
--           lifetime, fence (the fencing token of the last claim)
--   lock    that claim: expires with its lease; or that the load failed: expires with the pause
-- and last of all
--   fences  the last fencing token
-- Times are milliseconds of Redis's own clock.
--
-- claim:    ARGV = 'claim', owner, lease, then for each value the oldest version that may be used.
--           For each value: 'found' version data age young lifetime | 'ours' fence
--           | 'elsewhere' | 'paused'
-- store:    ARGV = 'store', owner, then for each value: fence version data age young lifetime
--           For each value whether it was stored.
-- give up:  ARGV = 'give up', owner, pause, then for each value its fence.

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local what, owner = ARGV[1], ARGV[2]
local values = (#KEYS - 1) / 2
local replies = {}
local PAUSED = 'paused'

local function held_as(fence)
  return owner .. ' ' .. fence
end

if what == 'claim' then
  local lease = tonumber(ARGV[3])
  for i = 1, values do
    local value, lock = KEYS[2 * i - 1], KEYS[2 * i]
    local version, data, at, young = unpack(redis.call('HMGET', value, 'version', 'data', 'at', 'young'))
    if data and tonumber(version) >= tonumber(ARGV[3 + i]) and now - at < tonumber(young) then
      replies[i] = {'found', version, data, now - at, young, redis.call('HGET', value, 'lifetime')}
    elseif redis.call('EXISTS', lock) == 1 then
      replies[i] = {redis.call('GET', lock) == PAUSED and 'paused' or 'elsewhere'}
    else
      local fence = redis.call('INCR', KEYS[#KEYS])
      redis.call('SET', lock, held_as(fence), 'PX', lease)
      redis.call('HSET', value, 'fence', fence)
      if redis.call('PTTL', value) < 10 * lease then
        redis.call('PEXPIRE', value, 10 * lease)
      end
      replies[i] = {'ours', fence}
    end
  end
elseif what == 'store' then
  for i = 1, values do
    local value, lock = KEYS[2 * i - 1], KEYS[2 * i]
    local fence, version, data, age, young, lifetime = unpack(ARGV, 6 * i - 3, 6 * i + 2)
    local newest = redis.call('HGET', value, 'fence')
    if newest and tonumber(newest) <= tonumber(fence) then
      redis.call('HSET', value, 'version', version, 'data', data, 'at', now - age, 'young', young,
        'lifetime', lifetime)
      redis.call('PEXPIRE', value, math.max(1, lifetime - age))
      replies[i] = 1
    else
      replies[i] = 0
    end
    if redis.call('GET', lock) == held_as(fence) then
      redis.call('DEL', lock)
    end
  end
else
  for i = 1, values do
    local lock = KEYS[2 * i]
    if redis.call('GET', lock) == held_as(ARGV[3 + i]) then
      redis.call('SET', lock, PAUSED, 'PX', ARGV[3])
    end
    replies[i] = 1
  end
end
return replies
