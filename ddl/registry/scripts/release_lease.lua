-- Lets go of the lease if it is the one named.
-- KEYS[1] lease
-- ARGV[1] Lease
-- Returns 1 if it was let go, 0 if it was not ours.
local present = redis.call('GET', KEYS[1])
if not present then
  return 0
end
local held, ours = cjson.decode(present), cjson.decode(ARGV[1])
if held.epoch ~= ours.epoch or held.holder ~= ours.holder then
  return 0
end
return redis.call('DEL', KEYS[1])
