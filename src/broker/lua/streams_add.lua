-- ARGV: nonce, then for each job: queue, delay in ms, priority, unique key or '', spec, attempts.
-- Returns {{id, existing}, …}.
--@include _streams.lua
local done = call('GET', P .. ':nonce:' .. ARGV[1])
if done then
  return cjson.decode(done)
end
local WIDTH = 6
local added, last, left = {}, 0, 0

-- Ids come as many at a time as jobs are left that have no unique key, which may bring another job's.
local function next_id(i)
  if left == 0 then
    repeat
      left = left + 1
      i = i + WIDTH
    until i > #ARGV or ARGV[i + 3] ~= ''
    last = call('INCRBY', P .. ':id', left)
  end
  left = left - 1
  return string.format('%d', last - left)
end

local function add(i)
  local q, delay, pr, uq = ARGV[i], tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]), ARGV[i + 3]
  local id = uq ~= '' and call('HGET', P .. ':u:' .. q, uq)
  if id then
    added[#added + 1] = { id, 1 }
    return
  end
  id = next_id(i)
  local j = { 'q', q, 'st', delay > 0 and 'delayed' or 'waiting', 'pr', ARGV[i + 2], 'at', '0', 'au', '0', 'am', ARGV[i + 5], 'pb', '0', 'ea', '0',
    'ct', now, 'spec', ARGV[i + 4] }
  if delay > 0 then
    j[#j + 1] = 'due'
    j[#j + 1] = now + delay
  elseif pr == 0 then
    j[#j + 1] = 'e'
    j[#j + 1] = call('XADD', sk(q), '*', 'id', id)
  end
  if uq ~= '' then
    j[#j + 1] = 'uq'
    j[#j + 1] = uq
    call('HSET', P .. ':u:' .. q, uq, id)
  end
  call('HSET', jk(id), unpack(j))
  together('ZADD', P .. ':ids:' .. q, id, id)
  if delay > 0 then
    call('ZADD', zk(q, 'later'), now + delay, id)
  elseif pr > 0 then
    make_ready(id, q, pr)
  else
    together('ZADD', zk(q, 'waiting'), id, id)
  end
  if i == 2 or q ~= ARGV[i - WIDTH] then
    call('SADD', P .. ':queues', q)
  end
  added[#added + 1] = { id, 0 }
end

carry_out(function()
  for i = 2, #ARGV, WIDTH do
    add(i)
  end
end)
call('SET', P .. ':nonce:' .. ARGV[1], cjson.encode(added), 'EX', 600)
event('add')
return added
