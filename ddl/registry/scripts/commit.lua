-- Shows one log record.
-- KEYS[1] run  KEYS[2] epoch  KEYS[3] head  KEYS[4] fragments  KEYS[5] receipts  KEYS[6] handins
-- KEYS[7] answers  KEYS[8] news
-- ARGV[1] epoch  ARGV[2] seq of the record  ARGV[3] Head
-- ARGV[4] JSON {field, value, ...} of fragments  ARGV[5] JSON {{field, seq, Receipt}, ...}
-- ARGV[6] JSON {field, value, ...} of run, empty if it stays  ARGV[7] seq that was shown last
-- Returns 1 (also if Redis shows that record or a later one, has lost the run, or has lost what was
-- shown last), 0 if fenced.
if fenced(KEYS[2], tonumber(ARGV[1])) then
  return 0
end
if redis.call('EXISTS', KEYS[1]) == 0 then
  return 1
end
local head = redis.call('GET', KEYS[3])
local shown = head and cjson.decode(head).seq
if shown and (shown >= tonumber(ARGV[2]) or shown < tonumber(ARGV[7])) then
  return 1
end
redis.call('SET', KEYS[3], ARGV[3])
local fragments, run = cjson.decode(ARGV[4]), cjson.decode(ARGV[6])
if #fragments > 0 then
  redis.call('HSET', KEYS[4], unpack(fragments))
end
if #run > 0 then
  redis.call('HSET', KEYS[1], unpack(run))
end
enter_receipts(KEYS[5], KEYS[6], KEYS[7], cjson.decode(ARGV[5]))
wake(KEYS[8], 'head')
return 1
