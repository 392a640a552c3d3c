-- Enters a coordinator that waits for the lease, or takes it off the list.
-- KEYS[1] standbys: sorted set, holder by the instant until which it is taken for alive
-- ARGV[1] holder  ARGV[2] seconds from now, 0 takes it off
-- Returns 1.
local now = tonumber(server_now())
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
if tonumber(ARGV[2]) > 0 then
  redis.call('ZADD', KEYS[1], now + tonumber(ARGV[2]), ARGV[1])
  redis.call('PEXPIRE', KEYS[1], math.ceil(tonumber(ARGV[2]) * 1000))
else
  redis.call('ZREM', KEYS[1], ARGV[1])
end
return 1
