-- Takes the lease if nobody holds it; what is no lease is overwritten. One from which somebody took
-- its end gets another, or a dead holder's would stand for ever. Who asks again after a lost reply is
-- told of the one it has: a call that is done twice, or late, must not fence its own caller.
-- KEYS[1] lease  KEYS[2] epoch
-- ARGV[1] Lease wanted  ARGV[2] time to live in ms  ARGV[3] least epoch to go beyond
-- Returns {1 if held, Lease in force or '', its ms left, now, 0}.
local now = server_now()
local wanted = cjson.decode(ARGV[1])
local held, present = standing_lease(KEYS[1])
if held then
  if held.holder ~= wanted.holder or held.host ~= wanted.host or held.pid ~= wanted.pid then
    if redis.call('PTTL', KEYS[1]) == -1 then
      redis.call('PEXPIRE', KEYS[1], ARGV[2])
    end
    return {0, present, redis.call('PTTL', KEYS[1]), now, 0}
  end
  if held.epoch > tonumber(ARGV[3]) then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
    return {1, present, tonumber(ARGV[2]), now, 0}
  end
end
wanted.epoch = math.max(tonumber(redis.call('GET', KEYS[2]) or 0), tonumber(ARGV[3])) + 1
wanted.taken_at = tonumber(now)
local lease = cjson.encode(wanted)
redis.call('SET', KEYS[2], wanted.epoch)
redis.call('SET', KEYS[1], lease, 'PX', ARGV[2])
return {1, lease, tonumber(ARGV[2]), now, 0}
