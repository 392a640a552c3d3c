-- Enters one hand-in, or says that its payload was put again.
-- KEYS[1] run  KEYS[2] learners  KEYS[3] handins  KEYS[4] receipts  KEYS[5] answers  KEYS[6] arrivals
-- ARGV[1] learner  ARGV[2] incarnation of the announcer
-- ARGV[3] JSON {field, incarnation, seq, lineage, Handin}
-- Returns 'accepted', 'known' or 'refused: ...'.
local lineage = redis.call('HGET', KEYS[1], 'lineage')
if not lineage then
  return 'refused: Redis does not know the run'
end
local incarnation = tonumber(ARGV[2])
local newest = newest_incarnation(KEYS[2], ARGV[1])
if newest ~= incarnation then
  return string.format(
    'refused: incarnation %d announces, the one registered is %d', incarnation, newest)
end
local claim = cjson.decode(ARGV[3])
local field, seq = claim[1], claim[3]
local outcome = enter_handin(KEYS[3], claim, seq_of(KEYS[4], field), lineage, incarnation)
local answered = outcome == 'known' and tonumber(redis.call('HGET', KEYS[5], field) or 0) == seq
if answered then
  redis.call('HDEL', KEYS[5], field)
end
if answered or outcome == 'accepted' then
  wake(KEYS[6], 'handin')
end
return outcome
