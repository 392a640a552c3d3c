-- Writes all that the coordinator owns anew.
-- KEYS[1] run  KEYS[2] epoch  KEYS[3] head  KEYS[4] fragments  KEYS[5] receipts  KEYS[6] handins
-- KEYS[7] answers  KEYS[8] news  KEYS[9] rounds  KEYS[10] orders  KEYS[11] learners
-- KEYS[12] beats  KEYS[13] requests  KEYS[14] units  KEYS[15] events
-- ARGV[1] epoch  ARGV[2] lineage  ARGV[3] Head
-- ARGV[4] JSON {field, value, ...} of fragments  ARGV[5] JSON {{field, seq, Receipt}, ...}
-- ARGV[6] JSON {field, value, ...} of run
-- Returns 1, or 0 if fenced.
if fenced(KEYS[2], tonumber(ARGV[1])) then
  return 0
end
local before = redis.pcall('HGET', KEYS[1], 'lineage')
redis.call('SET', KEYS[3], ARGV[3])
redis.call('DEL', KEYS[1], KEYS[4], KEYS[5], KEYS[7], KEYS[9], KEYS[10])
if type(before) == 'string' and before ~= ARGV[2] then
  redis.call('DEL', KEYS[6], KEYS[11], KEYS[12], KEYS[13], KEYS[14], KEYS[15])
end
redis.call('HSET', KEYS[1], unpack(cjson.decode(ARGV[6])))
redis.call('HSET', KEYS[4], unpack(cjson.decode(ARGV[4])))
enter_receipts(KEYS[5], KEYS[6], KEYS[7], cjson.decode(ARGV[5]))
wake(KEYS[8], 'rebuilt')
return 1
