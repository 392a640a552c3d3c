-- Extends a lease, or puts it back if it ran out and nobody has taken it since, or if an older one
-- stands there (Redis has failed over to a copy that lagged behind), or something that is no lease.
-- What else it tells of its holder is taken over.
-- KEYS[1] lease  KEYS[2] epoch
-- ARGV[1] Lease  ARGV[2] time to live in ms
-- Returns {1 if held, Lease in force or '', its ms left, now, 1 if something else stood there}.
local now = server_now()
local ours = cjson.decode(ARGV[1])
local held, present = standing_lease(KEYS[1])
if held then
  if held.epoch == ours.epoch and held.holder == ours.holder then
    local told = redis.pcall('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
    if told.err then  -- a Redis that is out of memory still lets the holder keep the run
      redis.call('PEXPIRE', KEYS[1], ARGV[2])
    end
    return {1, ARGV[1], tonumber(ARGV[2]), now, 0}
  end
  if held.epoch >= ours.epoch then
    return {0, present, redis.call('PTTL', KEYS[1]), now, 0}
  end
end
if fenced(KEYS[2], ours.epoch) then
  return {0, '', 0, now, 0}
end
local foreign = held and 0 or redis.call('EXISTS', KEYS[1])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return {1, ARGV[1], tonumber(ARGV[2]), now, foreign}
