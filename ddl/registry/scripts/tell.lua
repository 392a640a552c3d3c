-- Appends facts for people, unless Redis has lost the run.
-- KEYS[1] run  KEYS[2] events
-- ARGV Fact, ...
-- Returns the number of facts appended.
if redis.call('EXISTS', KEYS[1]) == 0 then
  return 0
end
for _, fact in ipairs(ARGV) do
  redis.call('XADD', KEYS[2], 'MAXLEN', '~', 4096, '*', 'fact', fact)
end
return #ARGV
