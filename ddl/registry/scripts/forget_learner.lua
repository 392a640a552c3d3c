-- Removes a learner that is gone, unless a newer incarnation of it came.
-- KEYS[1] epoch  KEYS[2] learners  KEYS[3] beats  KEYS[4] orders
-- ARGV[1] epoch  ARGV[2] learner  ARGV[3] incarnation
-- Returns 1, or 0 if fenced.
if fenced(KEYS[1], tonumber(ARGV[1])) then
  return 0
end
if newest_incarnation(KEYS[2], ARGV[2]) <= tonumber(ARGV[3]) then
  for key = 2, 4 do
    redis.call('HDEL', KEYS[key], ARGV[2])
  end
end
return 1
