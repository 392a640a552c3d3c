-- Sets or removes one field of a hash that the coordinator answers with.
-- KEYS[1] run  KEYS[2] epoch  KEYS[3] the hash  KEYS[4] news
-- ARGV[1] epoch  ARGV[2] field  ARGV[3] value, '' removes the field
-- Returns 1 (also if Redis has lost the run), 0 if fenced. A value set wakes learners.
if fenced(KEYS[2], tonumber(ARGV[1])) then
  return 0
end
if redis.call('EXISTS', KEYS[1]) == 0 then
  return 1
end
if ARGV[3] == '' then
  redis.call('HDEL', KEYS[3], ARGV[2])
else
  redis.call('HSET', KEYS[3], ARGV[2], ARGV[3])
  wake(KEYS[4], 'answer')
end
return 1
