-- Hands a person's request to the coordinator.
-- KEYS[1] run  KEYS[2] requests  KEYS[3] arrivals
-- ARGV[1] id  ARGV[2] Request
-- Returns 1, or 0 if Redis does not know the run.
if redis.call('EXISTS', KEYS[1]) == 0 then
  return 0
end
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
wake(KEYS[3], 'request')
return 1
