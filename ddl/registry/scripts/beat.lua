-- A learner's sign of life, its announcements, and all it needs to hear.
-- KEYS[1] run  KEYS[2] learners  KEYS[3] beats  KEYS[4] handins  KEYS[5] receipts  KEYS[6] answers
-- KEYS[7] head  KEYS[8] rounds  KEYS[9] orders  KEYS[10] arrivals  KEYS[11] lease
-- ARGV[1] learner  ARGV[2] incarnation  ARGV[3] lineage  ARGV[4] LearnerRecord
-- ARGV[5] digest of the settings it knows
-- ARGV[6] JSON {{field, incarnation, seq, lineage, Handin}, ...}
-- Returns {now, boot, lineage, newest incarnation, 1 if the lease is held, head, rounds, order,
--          settings, {Receipt of a hand-in named, ...}, {index of a hand-in to put again, from 1, ...}};
-- '' stands for what is not there, and for settings that the learner knows. Nothing but `now` and
-- the first five matter when the lineage is another one. Nothing is written for an incarnation
-- that is not the newest one registered.
local now = server_now()
local run = redis.call('HMGET', KEYS[1], 'boot', 'lineage', 'settings_digest')
local boot, lineage = run[1] or '', run[2] or ''
local incarnation = tonumber(ARGV[2])
local newest = newest_incarnation(KEYS[2], ARGV[1])
if lineage ~= ARGV[3] then
  return {now, boot, lineage, newest, 0, '', '', '', '', {}, {}}
end
local registered = newest == incarnation
if registered then
  redis.call('HSET', KEYS[2], ARGV[1], ARGV[4])
  redis.call('HSET', KEYS[3], ARGV[1], now)
end
local receipts, again, arrived = {}, {}, false
for index, claim in ipairs(cjson.decode(ARGV[6])) do
  local field, seq = claim[1], claim[3]
  local receipt = redis.call('HGET', KEYS[5], field)
  local receipted = receipt and cjson.decode(receipt).seq or 0
  if receipted >= seq then
    receipts[#receipts + 1] = receipt
  elseif registered then
    local outcome = enter_handin(KEYS[4], claim, receipted, lineage, incarnation)
    arrived = arrived or outcome == 'accepted'
  end
  if tonumber(redis.call('HGET', KEYS[6], field) or 0) == seq then
    again[#again + 1] = index
  end
end
if arrived then
  wake(KEYS[10], 'handin')
end
return {
  now, boot, lineage, newest,
  redis.call('EXISTS', KEYS[11]),
  redis.call('GET', KEYS[7]) or '',
  redis.call('GET', KEYS[8]) or '',
  redis.call('HGET', KEYS[9], ARGV[1]) or '',
  run[3] ~= ARGV[5] and redis.call('HGET', KEYS[1], 'settings') or '',
  receipts, again,
}
