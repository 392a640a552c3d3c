-- Lets go of the lease if it is the one named.
-- KEYS[1] lease
-- ARGV[1] Lease
-- Returns 1 if it was let go, 0 if it was not ours.
local held, ours = standing_lease(KEYS[1]), cjson.decode(ARGV[1])
if not held or held.epoch ~= ours.epoch or held.holder ~= ours.holder then
  return 0
end
return redis.call('DEL', KEYS[1])
