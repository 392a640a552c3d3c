-- Reads all that learners and people have said.
-- KEYS[1] run  KEYS[2] head  KEYS[3] learners  KEYS[4] beats  KEYS[5] handins  KEYS[6] requests
-- KEYS[7] answers  KEYS[8] units
-- Returns {now, boot or '', Head or '', learners, beats, handins, requests, answers, units}, each
-- hash as a flat list.
-- A script, not MULTI: before 7.0 a server that is out of memory queues no command.
local reply = {
  server_now(),
  redis.call('HGET', KEYS[1], 'boot') or '',
  redis.call('GET', KEYS[2]) or '',
}
for key = 3, 8 do
  reply[#reply + 1] = redis.call('HGETALL', KEYS[key])
end
return reply
