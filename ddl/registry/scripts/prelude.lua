-- Stands before every script. Only the scripts themselves touch KEYS and ARGV.
--
-- Records are passed through as text and only decoded to look at a number in them: cjson would
-- write floats with 14 digits and empty lists as {}.
-- The first write of a script is one that a full Redis refuses, so that it refuses the whole.

-- Redis time in seconds, as text: numbers lose their fraction on the way out of Lua.
local function server_now()
  local time = redis.call('TIME')
  return string.format('%d.%06d', time[1], time[2])
end

-- Whether a higher epoch than `epoch` was given out; if not, `epoch` is remembered as the highest.
local function fenced(epoch_key, epoch)
  local highest = tonumber(redis.call('GET', epoch_key) or 0)
  if highest < epoch then
    redis.call('SET', epoch_key, epoch)
  end
  return highest > epoch
end

-- The lease that stands under a key, and its text; nothing if what stands there is no lease.
local function standing_lease(key)
  local text = redis.pcall('GET', key)
  local ok, lease = pcall(cjson.decode, text)
  if ok and type(lease) == 'table' and tonumber(lease.epoch) and lease.holder then
    return lease, text
  end
end

-- Appends to a stream of wake-ups. It stays short: an entry is a hint, never the only notice.
local function wake(stream, what)
  redis.call('XADD', stream, 'MAXLEN', '~', 64, '*', 'what', what)
end

-- The newest incarnation registered under a learner's id; 0 if there is none.
local function newest_incarnation(learners, learner)
  local record = redis.call('HGET', learners, learner)
  return record and cjson.decode(record).incarnation or 0
end

-- The seq of the record under a field of `handins` or `receipts`; 0 if there is none.
local function seq_of(hash, field)
  local record = redis.call('HGET', hash, field)
  return record and cjson.decode(record).seq or 0
end

-- Enters a hand-in that comes next in its field.
-- claim: {field, incarnation, seq, lineage, Handin}. `receipted`: seq of the field's receipt.
-- `lineage` is the run's; `incarnation` is the announcer's, which is the newest of its id.
-- Returns 'accepted', 'known' or 'refused: ...'.
local function enter_handin(handins, claim, receipted, lineage, incarnation)
  local field, seq = claim[1], claim[3]
  if claim[4] ~= lineage then
    return 'refused: it belongs to another lineage of the run'
  end
  if claim[2] > incarnation then
    return string.format('refused: incarnation %d has not been registered', claim[2])
  end
  if seq <= receipted or seq == seq_of(handins, field) then
    return 'known'
  end
  if seq ~= receipted + 1 then
    return string.format('refused: seq %d is not the next one (%d)', seq, receipted + 1)
  end
  redis.call('HSET', handins, field, claim[5])
  return 'accepted'
end

-- Enters receipts, rows of {field, seq, Receipt}, and removes what they settle.
local function enter_receipts(receipts, handins, answers, rows)
  for _, row in ipairs(rows) do
    local field, seq = row[1], row[2]
    if seq > seq_of(receipts, field) then
      redis.call('HSET', receipts, field, row[3])
    end
    local pending = seq_of(handins, field)
    if pending > 0 and pending <= seq then
      redis.call('HDEL', handins, field)
    end
    if tonumber(redis.call('HGET', answers, field) or seq + 1) <= seq then
      redis.call('HDEL', answers, field)
    end
  end
end
