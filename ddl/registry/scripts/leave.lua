-- Marks an incarnation as ended.
-- KEYS[1] run  KEYS[2] learners  KEYS[3] beats  KEYS[4] arrivals
-- ARGV[1] learner  ARGV[2] incarnation  ARGV[3] lineage  ARGV[4] LearnerRecord, its last
-- Returns 1, or 0 if Redis does not know that incarnation as the newest.
if redis.call('HGET', KEYS[1], 'lineage') ~= ARGV[3] then
  return 0
end
if newest_incarnation(KEYS[2], ARGV[1]) ~= tonumber(ARGV[2]) then
  return 0
end
redis.call('HSET', KEYS[2], ARGV[1], ARGV[4])
redis.call('HSET', KEYS[3], ARGV[1], server_now())
wake(KEYS[4], 'left')
return 1
