-- ARGV: worker, lease in ms, takeover grace in ms or -1 (not now).
-- What has to be done from time to time, by whoever comes by: signs of life, delays that are due, retention, entries that stand in nobody's
-- books, jobs whose entry an outsider has removed.
-- Returns {due, removed, vanished, {workers}, {jobs whose lease is over, as streams_held.lua, and their worker}}.
--@include _streams.lua
--@include _streams_foreign.lua
local worker, lease_ms, grace = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local due, removed, vanished, over = 0, 0, 0, {}

call('ZADD', P .. ':alive', now + lease_ms, worker)

local queues = call('SMEMBERS', P .. ':queues')
for _, q in ipairs(queues) do
  due = due + promote(q, 500)
end

local keeps = call('HGETALL', P .. ':keep')
for i = 1, #keeps, 2 do
  local q, st = string.match(keeps[i], '^(.*)/(%a+)$')
  local ms, count = string.match(keeps[i + 1], '^(%d+)/(%d+)$')
  if q and ms then
    removed = removed + expire(q, st, tonumber(ms), tonumber(count), 50)
  end
end

-- Entries that were read long ago and are of no active job: a foreign consumer of our group took them and died.
local function strays(q)
  local cursor = call('HGET', P .. ':cursor', q) or '0-0'
  local reply = redis.pcall('XAUTOCLAIM', sk(q), GROUP, worker, lease_ms, cursor, 'COUNT', 32, 'JUSTID')
  if reply.err then
    return
  end
  call('HSET', P .. ':cursor', q, reply[1])
  for _, entry in ipairs(reply[2]) do
    local body = call('XRANGE', sk(q), entry, entry)[1]
    local fields = body and body[2] or {}
    local id = fields[1] == 'id' and #fields == 2 and fields[2] or call('HGET', P .. ':e:' .. q, entry)
    if not id and body then
      id = adopt(q, entry, fields)
    end
    local j = id and get(id, 'st', 'e', 'w', 'pr') or {}
    if j[1] == 'active' and j[2] == entry then
      call('XCLAIM', sk(q), GROUP, j[3], 0, entry, 'JUSTID')
    else
      call('XACK', sk(q), GROUP, entry)
      call('XDEL', sk(q), entry)
      if j[1] == 'waiting' and j[2] == entry then
        call('HDEL', jk(id), 'e')
        make_ready(id, q, tonumber(j[4]))
        due = due + 1
      elseif not body then
        vanished = vanished + 1
      end
    end
  end
end

-- Waiting jobs whose entry is not there any more (XDEL, XTRIM, DEL by hand): back through the set of ready ones.
local function missing(q)
  local waiting, ready = call('ZCARD', zk(q, 'waiting')), call('ZCARD', zk(q, 'ready'))
  local ok = redis.pcall('XLEN', sk(q))
  local short = type(ok) == 'number' and ok < waiting - ready
  local from = call('HGET', P .. ':checked', q) or '0'
  local ids = call('ZRANGEBYSCORE', zk(q, 'waiting'), '(' .. from, '+inf', 'LIMIT', 0, short and 1000 or 50)
  for _, id in ipairs(ids) do
    local j = get(id, 'e', 'pr')
    if j[1] and #call('XRANGE', sk(q), j[1], j[1]) == 0 then
      call('XACK', sk(q), GROUP, j[1])
      call('HDEL', jk(id), 'e')
      call('HDEL', P .. ':e:' .. q, j[1])
      make_ready(id, q, tonumber(j[2]))
      vanished = vanished + 1
    end
  end
  call('HSET', P .. ':checked', q, #ids > 0 and ids[#ids] or '0')
end

for _, q in ipairs(queues) do
  strays(q)
  missing(q)
end

if grace >= 0 then
  for _, id in ipairs(call('ZRANGEBYSCORE', P .. ':leases', '-inf', now - grace, 'LIMIT', 0, 100)) do
    local j = get(id, 'w', 'at', 'sd', 'cr', 'au', 'pb', 'sm', 'spec', 'am', 'q', 'st', 'lu')
    if j[11] ~= 'active' then
      call('ZREM', P .. ':leases', id)
    else
      over[#over + 1] = { id, j[2], j[3] == '1' and 1 or 0, j[4] and 1 or 0, j[5], j[6], j[7] or '0', j[8], j[9], j[10], j[1],
        now - tonumber(j[12] or now) }
    end
  end
end
if due + vanished > 0 then
  event('due')
end
return { due, removed, vanished, workers(), over }
