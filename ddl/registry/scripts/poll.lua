-- Reads all that learners and people have said.
-- KEYS[1] run  KEYS[2] learners  KEYS[3] beats  KEYS[4] handins  KEYS[5] requests  KEYS[6] answers
-- Returns {now, boot or '', learners, beats, handins, requests, answers}, each hash as a flat list.
-- A script, not MULTI: before 7.0 a server that is out of memory queues no command.
local reply = {server_now(), redis.call('HGET', KEYS[1], 'boot') or ''}
for key = 2, 6 do
  reply[#reply + 1] = redis.call('HGETALL', KEYS[key])
end
return reply
