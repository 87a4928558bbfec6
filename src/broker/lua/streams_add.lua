-- ARGV: nonce, then for each job: queue, delay in ms, priority, unique key or '', spec, attempts.
-- Returns {{id, existing}, …}.
--@include _streams.lua
local done = call('GET', P .. ':nonce:' .. ARGV[1])
if done then
  return cjson.decode(done)
end
local added = {}
for i = 2, #ARGV, 6 do
  local q, delay, pr, uq = ARGV[i], tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]), ARGV[i + 3]
  local id = uq ~= '' and call('HGET', P .. ':u:' .. q, uq)
  if id then
    added[#added + 1] = { id, 1 }
  else
    id = tostring(call('INCR', P .. ':id'))
    local j = { 'q', q, 'st', 'waiting', 'pr', pr, 'at', 0, 'au', 0, 'am', ARGV[i + 5], 'pb', 0, 'ea', 0, 'ct', now, 'spec', ARGV[i + 4] }
    if delay == 0 and pr == 0 then
      j[#j + 1] = 'e'
      j[#j + 1] = call('XADD', sk(q), '*', 'id', id)
    end
    call('HSET', jk(id), unpack(j))
    if uq ~= '' then
      call('HSET', jk(id), 'uq', uq)
      call('HSET', P .. ':u:' .. q, uq, id)
    end
    call('ZADD', P .. ':ids:' .. q, id, id)
    if delay > 0 then
      call('HSET', jk(id), 'st', 'delayed', 'due', now + delay)
      call('ZADD', zk(q, 'later'), now + delay, id)
    elseif pr > 0 then
      make_ready(id, q, pr)
    else
      call('ZADD', zk(q, 'waiting'), id, id)
    end
    if i == 2 or q ~= ARGV[i - 6] then
      call('SADD', P .. ':queues', q)
    end
    added[#added + 1] = { id, 0 }
  end
end
call('SET', P .. ':nonce:' .. ARGV[1], cjson.encode(added), 'EX', 600)
event('add')
return added
