-- Reads all that learners and people have said.
-- KEYS[1] run  KEYS[2] head  KEYS[3] learners  KEYS[4] beats  KEYS[5] handins  KEYS[6] requests
-- KEYS[7] answers  KEYS[8] units
-- Returns {now, boot or '', 1 if the run's entry is gone or not as it was written, Head or '', learners,
-- beats, handins, requests, answers, units}, each hash as a flat list.
-- A script, not MULTI: before 7.0 a server that is out of memory queues no command.
local run = redis.pcall('HMGET', KEYS[1], 'boot', 'check', 'lineage', 'settings_digest')
local whole = false
if run.err then
  run = {}
elseif run[1] then
  local lengths = { redis.call('HSTRLEN', KEYS[1], 'entry'), redis.call('HSTRLEN', KEYS[1], 'settings') }
  whole = run[2] == table.concat({run[1], run[3] or '', run[4] or '', lengths[1], lengths[2]}, ' ')
end
local head = redis.pcall('GET', KEYS[2])
local reply = {
  server_now(),
  run[1] or '',
  whole and 0 or 1,
  type(head) == 'string' and head or '',
}
for key = 3, 8 do
  reply[#reply + 1] = redis.call('HGETALL', KEYS[key])
end
return reply
