-- _streams_foreign.lua - an entry that another producer has added becomes a job.
local units = { ms = 1, s = 1000, m = 60000, h = 3600000, d = 86400000 }

local function duration(value)
  if type(value) == 'number' then
    return value
  elseif type(value) ~= 'string' then
    return 0 -- the worker will say what is wrong with it
  end
  local sum = 0
  for n, unit in string.gmatch(value, '(%d+)(%a*)') do
    sum = sum + tonumber(n) * (units[unit] or 1)
  end
  return sum
end

-- {field, value, …}: `job` is a job object; else `data` is JSON, or text; else all fields are the data.
local function spec_of(fields)
  local map = {}
  for i = 1, #fields, 2 do
    map[fields[i]] = fields[i + 1]
  end
  if map.job then
    local ok, job = pcall(cjson.decode, map.job)
    return map.job, ok and type(job) == 'table' and job or {}
  end
  if map.data then
    local ok = pcall(cjson.decode, map.data)
    return '{"data":' .. (ok and map.data or cjson.encode(map.data)) .. '}', {}
  end
  return '{"data":' .. cjson.encode(map) .. '}', {}
end

local function number(value, low, fallback)
  local n = tonumber(value)
  return n and n >= low and math.floor(n) or fallback
end

-- The new job's id; nil when its unique key is taken.  It is waiting, and its entry is `entry`.
local function adopt(q, entry, fields)
  local spec, job = spec_of(fields)
  local uq = type(job.unique) == 'string' and job.unique or nil
  if uq and call('HEXISTS', P .. ':u:' .. q, uq) == 1 then
    return nil
  end
  local id = tostring(call('INCR', P .. ':id'))
  call('HSET', jk(id), 'q', q, 'st', 'waiting', 'pr', math.min(number(job.priority, 0, 0), 2097152), 'at', 0, 'au', 0, 'am',
    number(job.attempts, 1, 1), 'pb', 0, 'ea', 0, 'ct', string.match(entry, '^%d+'), 'spec', spec, 'e', entry, 'fo', 1)
  if uq then
    call('HSET', jk(id), 'uq', uq)
    call('HSET', P .. ':u:' .. q, uq, id)
  end
  call('ZADD', P .. ':ids:' .. q, id, id)
  call('SADD', P .. ':queues', q)
  call('HSET', P .. ':e:' .. q, entry, id)
  local pr, delay = tonumber(call('HGET', jk(id), 'pr')), duration(job.delay)
  if delay > 0 then
    forget_entry(id, q, entry)
    call('HSET', jk(id), 'st', 'delayed', 'due', now + delay)
    call('ZADD', zk(q, 'later'), now + delay, id)
  elseif pr > 0 then
    forget_entry(id, q, entry)
    make_ready(id, q, pr)
  else
    call('ZADD', zk(q, 'waiting'), id, id)
  end
  return id
end
