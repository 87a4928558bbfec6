-- ARGV: worker, lease in ms, want, start, turn, nonce, nonce of a lease whose answer was lost or '', then for each queue: name, max, start, attempts;
-- no queues: all.
-- Returns {next due in ms or -1, drained, {names of the queues}, {id, queue, spec, attempt, used, put backs, created, started}, …}.
--@include _streams.lua
--@include _streams_foreign.lua
local worker, lease_ms, want, start, turn = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local nonce, lost = ARGV[6], ARGV[7]
local answer, names, taken = {}, {}, 0

-- What is read of each job, once.
local function look(id)
  return get(id, 'st', 'e', 'w', 'spec', 'at', 'au', 'pb', 'ct', 'sd')
end

local function row(id, q, j, attempt, started)
  taken = taken + 1
  answer[#answer + 1] = { id, q, j[4], attempt, j[6], j[7], j[8], started and 1 or 0 }
end

local function take(id, q, j, started, attempts)
  local attempt = j[5]
  call('ZREM', zk(q, 'waiting'), id)
  call('ZADD', zk(q, 'active'), id, id)
  call('ZADD', P .. ':leases', now + lease_ms, id)
  if started then
    attempt = attempt + 1
    call('HSET', jk(id), 'st', 'active', 'w', worker, 'lu', now + lease_ms, 'ln', nonce, 'at', attempt, 'sd', 1, 'sm', now, 'ph', 'starting')
    if attempts > 0 then
      call('HSET', jk(id), 'am', attempts)
    end
  else
    call('HSET', jk(id), 'st', 'active', 'w', worker, 'lu', now + lease_ms, 'ln', nonce)
  end
  row(id, q, j, attempt, started)
end

-- What of a queue may be started at once.
local function starts(q, j)
  if q.start <= 0 or start <= 0 then
    return false
  end
  if q.attempts > 0 and string.find(j[4], '"attempts"', 1, true) then
    return false
  end
  q.start = q.start - 1
  start = start - 1
  return true
end

local function take_ready(q, below)
  while q.max > 0 and taken < want do
    local ids = call('ZRANGEBYSCORE', zk(q.name, 'ready'), '-inf', below, 'LIMIT', 0, math.min(q.max, want - taken))
    if #ids == 0 then
      return
    end
    for _, id in ipairs(ids) do
      local j = look(id)
      call('ZREM', zk(q.name, 'ready'), id)
      if j[1] == 'waiting' then
        take(id, q.name, j, starts(q, j), q.attempts)
        q.max = q.max - 1
      end
    end
  end
end

local function read(q, count)
  local reply = redis.pcall('XREADGROUP', 'GROUP', GROUP, worker, 'COUNT', count, 'STREAMS', sk(q), '>')
  if type(reply) == 'table' and reply.err then
    if not string.find(reply.err, 'NOGROUP', 1, true) then
      error(reply.err)
    end
    call('XGROUP', 'CREATE', sk(q), GROUP, 0, 'MKSTREAM')
    reply = call('XREADGROUP', 'GROUP', GROUP, worker, 'COUNT', count, 'STREAMS', sk(q), '>')
  end
  return reply and reply[1] and reply[1][2] or {}
end

-- The job of an entry, made when another producer added it.  nil: nothing to take (any more).
local function job_of(q, entry, fields)
  local id = fields[1] == 'id' and #fields == 2 and fields[2] or call('HGET', P .. ':e:' .. q, entry)
  if not id then
    id = adopt(q, entry, fields)
  end
  local j = id and look(id) or {}
  if j[1] == 'waiting' and j[2] == entry then
    return id, j
  elseif j[1] == 'active' and j[2] == entry then -- the group was made anew: whose it is, it stays
    call('XCLAIM', sk(q), GROUP, j[3], 0, entry, 'JUSTID')
  else
    call('XACK', sk(q), GROUP, entry)
    call('XDEL', sk(q), entry)
  end
  return nil
end

local function take_stream(q)
  while q.max > 0 and taken < want do
    local entries = read(q.name, math.min(q.max, want - taken))
    if #entries == 0 then
      return
    end
    for _, e in ipairs(entries) do
      local id, j = job_of(q.name, e[1], e[2] or {})
      if id then
        take(id, q.name, j, starts(q, j), q.attempts)
        q.max = q.max - 1
      end
    end
  end
end

local queues = {}
if #ARGV == 7 then
  local all = call('SMEMBERS', P .. ':queues')
  table.sort(all)
  for i = 1, #all do
    queues[#queues + 1] = { name = all[(i + turn - 1) % #all + 1], max = want, start = start, attempts = 0 }
  end
else
  for i = 8, #ARGV, 4 do
    queues[#queues + 1] = { name = ARGV[i], max = tonumber(ARGV[i + 1]), start = tonumber(ARGV[i + 2]), attempts = tonumber(ARGV[i + 3]) }
  end
end

if lost ~= '' then
  for _, id in ipairs(call('ZRANGE', P .. ':leases', 0, -1)) do
    local l = get(id, 'w', 'ln', 'q', 'e', 'pr', 'cr')
    if l[1] == worker and l[2] == lost and taken < want then
      local j = look(id)
      call('HSET', jk(id), 'ln', nonce)
      row(id, l[3], j, j[5], j[9] == '1')
    elseif l[1] == worker and l[2] == lost then
      go_back(id, l[3], l[4], l[5], l[6])
    end
  end
end

local next_due, busy = -1, false
for _, q in ipairs(queues) do
  names[#names + 1] = q.name
  if call('SISMEMBER', P .. ':paused', q.name) == 0 then
    if taken < want then
      promote(q.name, 500)
      take_ready(q, BAND - 1)
      take_stream(q)
      take_ready(q, '+inf')
    end
    for _, set in ipairs({ 'due', 'later' }) do
      local first = call('ZRANGE', zk(q.name, set), 0, 0, 'WITHSCORES')
      if first[2] then
        local left = math.max(tonumber(first[2]) - now, 0)
        next_due = next_due < 0 and left or math.min(next_due, left)
        busy = busy or set == 'due'
      end
    end
    busy = busy or call('ZCARD', zk(q.name, 'waiting')) > 0 or call('ZCARD', zk(q.name, 'active')) > 0
  end
end
table.insert(answer, 1, names)
table.insert(answer, 1, (taken == 0 and not busy) and 1 or 0)
table.insert(answer, 1, next_due)
return answer
