-- Enters an incarnation of a learner.
-- KEYS[1] run  KEYS[2] learners  KEYS[3] beats  KEYS[4] arrivals  KEYS[5] orders
-- ARGV[1] learner  ARGV[2] incarnation  ARGV[3] lineage  ARGV[4] LearnerRecord
-- ARGV[5] seconds without a beat after which an older incarnation is gone  ARGV[6] 1 to take over
-- ARGV[7] 1 to enter; else nothing is written
-- Returns {outcome, now, record in the way or '', age of its beat in s or ''}; outcome is 'entered', or
-- why not: 'unknown' (run), 'lineage', 'kicked' (by this Order, an older incarnation), or by this
-- LearnerRecord: 'newer' (incarnation) or 'alive' (older one).
local now = server_now()
local lineage = redis.call('HGET', KEYS[1], 'lineage')
if not lineage then
  return {'unknown', now, '', ''}
end
if lineage ~= ARGV[3] then
  return {'lineage', now, '', ''}
end
local incarnation = tonumber(ARGV[2])
local order = redis.call('HGET', KEYS[5], ARGV[1])
if order then
  local word = cjson.decode(order)
  if word.kind == 'kick' and word.incarnation < incarnation then
    return {'kicked', now, order, ''}
  end
end
local present = redis.call('HGET', KEYS[2], ARGV[1])
if present then
  local holder = cjson.decode(present)
  local age = tonumber(now) - tonumber(redis.call('HGET', KEYS[3], ARGV[1]) or 0)
  local age_text = string.format('%.3f', age)
  if holder.incarnation > incarnation then
    return {'newer', now, present, age_text}
  end
  local alive = holder.state ~= 'left' and age < tonumber(ARGV[5])
  if holder.incarnation < incarnation and alive and ARGV[6] ~= '1' then
    return {'alive', now, present, age_text}
  end
end
if ARGV[7] ~= '1' then
  return {'entered', now, '', ''}
end
redis.call('HSET', KEYS[2], ARGV[1], ARGV[4])
redis.call('HSET', KEYS[3], ARGV[1], now)
wake(KEYS[4], 'registered')
return {'entered', now, '', ''}
