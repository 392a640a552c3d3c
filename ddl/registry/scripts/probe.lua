-- Does once what the other scripts live on, on keys of its own, and takes it back.
-- KEYS[1] hash  KEYS[2] stream  KEYS[3] string
-- ARGV[1] JSON with a number `seq`
-- Returns Redis time in seconds.
redis.call('HSET', KEYS[1], 'record', ARGV[1])
local seq = seq_of(KEYS[1], 'record')
wake(KEYS[2], seq)
redis.call('SET', KEYS[3], seq, 'PX', 1000)
redis.call('UNLINK', KEYS[1], KEYS[2], KEYS[3])
return server_now()
