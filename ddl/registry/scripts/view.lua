-- Reads all that a display shows.
-- KEYS[1] run  KEYS[2] lease  KEYS[3] head  KEYS[4] rounds  KEYS[5] events  KEYS[6] standbys
-- KEYS[7] fragments  KEYS[8] learners  KEYS[9] beats  KEYS[10] handins  KEYS[11] receipts
-- KEYS[12] orders
-- ARGV[1] number of facts wanted
-- Returns {now, RunEntry, Lease, its ms left, Head, OpenRounds, facts, {standby, ...}, fragments,
-- learners, beats, handins, receipts, orders, INFO memory}; '' for what is not there. Facts come newest
-- first, each hash as its fields and values in turn, all of a kind in one text with '\0' between:
-- a client reads one long text many times as fast as many short ones. No word of ours has a '\0' in it.
local function joined(words)
  for index, word in ipairs(words) do
    if string.find(word, '\0', 1, true) then
      words[index] = string.gsub(word, '%z', '?')
    end
  end
  return table.concat(words, '\0')
end
local facts = {}
for _, row in ipairs(redis.call('XREVRANGE', KEYS[5], '+', '-', 'COUNT', ARGV[1]) or {}) do
  facts[#facts + 1] = row[2][2]
end
local reply = {
  server_now(),
  redis.call('HGET', KEYS[1], 'entry') or '',
  redis.call('GET', KEYS[2]) or '',
  redis.call('PTTL', KEYS[2]),
  redis.call('GET', KEYS[3]) or '',
  redis.call('GET', KEYS[4]) or '',
  joined(facts),
  redis.call('ZRANGEBYSCORE', KEYS[6], '(' .. server_now(), '+inf'),
}
for key = 7, 12 do
  reply[#reply + 1] = joined(redis.call('HGETALL', KEYS[key]))
end
local memory = redis.pcall('INFO', 'memory')  -- not everybody may ask
reply[#reply + 1] = type(memory) == 'string' and memory or ''
return reply
