-- Shows the open rounds.
-- KEYS[1] run  KEYS[2] epoch  KEYS[3] rounds  KEYS[4] news
-- ARGV[1] epoch  ARGV[2] OpenRounds  ARGV[3] 1 to wake learners
-- Returns 1 (also if Redis has lost the run), 0 if fenced.
if fenced(KEYS[2], tonumber(ARGV[1])) then
  return 0
end
if redis.call('EXISTS', KEYS[1]) == 0 then
  return 1
end
redis.call('SET', KEYS[3], ARGV[2])
if ARGV[3] == '1' then
  wake(KEYS[4], 'rounds')
end
return 1
