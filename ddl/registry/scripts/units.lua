-- Takes a learner's word on one data set, and gives it tickets to read (`ddl.protocol.units`).
-- KEYS[1] run  KEYS[2] learners  KEYS[3] beats  KEYS[4] head  KEYS[5] units
-- ARGV[1] learner  ARGV[2] incarnation  ARGV[3] lineage
-- ARGV[4] seconds without a beat after which a learner is gone  ARGV[5] UnitCall
-- Returns {'told', {{ticket, rows} granted, ...}, {ticket lost, ...}, {ticket settled, ...},
--          {{ticket, reason} repeated, ...}}, or why nothing was done: {'unknown'} (run or
-- incarnation), {'plan', the run's plan}.
--
-- Fields of `units`, for a data set NAME:
--   NAME/plan       as told first; the log's stands above it
--   NAME/repeated   {reason: count}
--   NAME/claim/T    {learner, begun, rows, from}: who reads ticket T. A claim by nobody ('', it was
--                   given back) or by one who is gone is free. `from`: whose reading of it was
--                   accounted for when it was taken over
--   NAME/read/T     {learner, from}: who finished T; stays until that learner knows it is in the log
--   NAME/call/L     the last call of learner L, so that one made again counts nothing twice
-- What the log lists as finished stands in `head`. All else may be lost with Redis: learners say it
-- again. The lowest ticket that nobody reads or has finished is the next to be granted.
local learner, incarnation = ARGV[1], tonumber(ARGV[2])
local lineage, gone_s, call = ARGV[3], tonumber(ARGV[4]), cjson.decode(ARGV[5])
local head = redis.call('GET', KEYS[4])
if redis.call('HGET', KEYS[1], 'lineage') ~= lineage or not head
    or newest_incarnation(KEYS[2], learner) ~= incarnation then
  return {'unknown'}
end
local prefix = call.name .. '/'
local logged = (cjson.decode(head).units or {})[call.name]
local plan = logged and logged.plan or redis.call('HGET', KEYS[5], prefix .. 'plan')
if plan and plan ~= call.plan then
  return {'plan', plan}
end

-- ---- reading

local now = tonumber(server_now())
local function gone(name)
  local beat = redis.call('HGET', KEYS[3], name)
  return not beat or now - tonumber(beat) > gone_s
end

local ranges = logged and logged.finished or {}
local function in_log(ticket)
  for _, range in ipairs(ranges) do
    if ticket < range[2] then
      return ticket >= range[1]
    end
  end
  return false
end

local claims, reads = {}, {}
local function set(kind, table, ticket, value)
  table[ticket] = value
  redis.call('HSET', KEYS[5], prefix .. kind .. '/' .. ticket, cjson.encode(value))
end
local function unset(kind, table, ticket)
  table[ticket] = nil
  redis.call('HDEL', KEYS[5], prefix .. kind .. '/' .. ticket)
end

redis.call('HSET', KEYS[5], prefix .. 'plan', call.plan)
local stored = redis.call('HGETALL', KEYS[5])
for i = 1, #stored, 2 do
  if string.sub(stored[i], 1, #prefix) == prefix then
    local kind, key = string.match(string.sub(stored[i], #prefix + 1), '^(%a+)/(.+)$')
    if kind == 'claim' then
      claims[tonumber(key)] = cjson.decode(stored[i + 1])
    elseif kind == 'read' then
      reads[tonumber(key)] = cjson.decode(stored[i + 1])
    elseif kind == 'call' and gone(key) then
      redis.call('HDEL', KEYS[5], stored[i])
    end
  end
end

-- Whether another learner, one that is there, reads this ticket.
local function taken(ticket)
  local claim = claims[ticket]
  return claim and claim.learner ~= '' and claim.learner ~= learner and not gone(claim.learner)
end

local life = incarnation .. '/' .. call.number
local is_new = redis.call('HGET', KEYS[5], prefix .. 'call/' .. learner) ~= life
redis.call('HSET', KEYS[5], prefix .. 'call/' .. learner, life)
local totals = cjson.decode(redis.call('HGET', KEYS[5], prefix .. 'repeated')
  or cjson.encode(logged and logged.repeated or {}))
local repeated = {}
local function note_repeat(ticket, reason)
  repeated[#repeated + 1] = {ticket, reason}
  if is_new then
    totals[reason] = (totals[reason] or 0) + 1
    redis.call('HSET', KEYS[5], prefix .. 'repeated', cjson.encode(totals))
  end
end

-- Counts a reading by us that is not the only one, unless it was when the ticket was taken from us.
local function note_second(ticket, claimed)
  local other = reads[ticket] or claims[ticket]
  if not other or other.from ~= learner then
    note_repeat(ticket, claimed and 'late' or 'unclaimed')
  end
end

-- Makes a ticket ours that is not another's, to be read from row `start` on. What somebody who has
-- gone had read is read again, unless its place was left and we go on there: then nothing is. Either
-- way its reading is accounted for: returns whose, '' for nobody's.
local function take_over(ticket, start)
  local claim = claims[ticket]
  if not claim then
    return ''
  end
  local again = claim.begun and claim.rows == 0 or start < claim.rows
  if claim.learner ~= learner and again then
    note_repeat(ticket, 'returned')
  end
  return claim.begun and claim.learner ~= learner and claim.learner or claim.from
end

-- ---- what it has finished

local settled, named = {}, {}
for _, reading in ipairs(call.finished) do
  local ticket = reading.ticket
  named[ticket] = true
  if reads[ticket] and reads[ticket].learner == learner then
    if in_log(ticket) then
      settled[#settled + 1] = ticket
    end
  elseif reads[ticket] or in_log(ticket) or taken(ticket) then
    settled[#settled + 1] = ticket
    note_second(ticket, reading.claimed)
  else
    set('read', reads, ticket, {learner = learner, from = take_over(ticket, 0)})
  end
end
for ticket, reading in pairs(reads) do
  local heard = reading.learner == learner and not named[ticket]
  if in_log(ticket) and (heard or gone(reading.learner)) then
    unset('read', reads, ticket)
  end
end

-- ---- what it holds

local lost, held = {}, {}
for _, holding in ipairs(call.held) do
  local ticket = holding.ticket
  if reads[ticket] or in_log(ticket) or taken(ticket) then
    lost[#lost + 1] = ticket
    -- a life before may have finished it after it wrote down that it held it
    local other = reads[ticket] or claims[ticket]
    local by_another = other and other.learner ~= learner
    if holding.begun and (by_another or holding.how ~= 'kept') then
      note_second(ticket, holding.how ~= 'unclaimed')
    end
  else
    held[ticket] = true
    local from = take_over(ticket, 0)
    set('claim', claims, ticket,
      {learner = learner, begun = holding.begun, rows = holding.rows, from = from})
  end
end
for ticket, claim in pairs(claims) do
  if reads[ticket] or in_log(ticket) then
    unset('claim', claims, ticket)
  elseif claim.learner == learner and not held[ticket] then
    claim.learner = ''
    set('claim', claims, ticket, claim)
  end
end

-- ---- what it gets

local granted, ticket, range = {}, 0, 1
while #granted < call.want do
  if ranges[range] and ticket >= ranges[range][1] then
    ticket, range = ranges[range][2], range + 1
  else
    if not reads[ticket] and not held[ticket] and not taken(ticket) then
      local rows = claims[ticket] and claims[ticket].rows or 0
      local from = take_over(ticket, rows)
      set('claim', claims, ticket, {learner = learner, begun = false, rows = rows, from = from})
      granted[#granted + 1] = {ticket, rows}
    end
    ticket = ticket + 1
  end
end
return {'told', granted, lost, settled, repeated}
