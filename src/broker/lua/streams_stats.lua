-- Returns {{name, paused, waiting, delayed, active, completed, failed, cancelled, oldest waiting in ms or -1}, …}, {workers}}.
--@include _streams.lua
-- Entries of other producers that nobody has read yet, up to 1000.
local function unread(q)
  local groups = redis.pcall('XINFO', 'GROUPS', sk(q))
  local from = '-'
  if groups.err then
    return 0, nil
  end
  for _, g in ipairs(groups) do
    local info = {}
    for i = 1, #g, 2 do
      info[g[i]] = g[i + 1]
    end
    if info.name == GROUP then
      from = '(' .. info['last-delivered-id']
    end
  end
  local count, oldest = 0, nil
  for _, e in ipairs(call('XRANGE', sk(q), from, '+', 'COUNT', 1000)) do
    if not (e[2][1] == 'id' and #e[2] == 2) then
      count = count + 1
      oldest = oldest or string.match(e[1], '^%d+')
    end
  end
  return count, oldest
end

local list = {}
for _, q in ipairs(call('SMEMBERS', P .. ':queues')) do
  local first, more, oldest = call('ZRANGE', zk(q, 'waiting'), 0, 0)[1], unread(q)
  local ct = first and call('HGET', jk(first), 'ct') or oldest
  list[#list + 1] = { q, call('SISMEMBER', P .. ':paused', q), call('ZCARD', zk(q, 'waiting')) + more,
    call('ZCARD', zk(q, 'due')) + call('ZCARD', zk(q, 'later')), call('ZCARD', zk(q, 'active')), call('ZCARD', zk(q, 'completed')),
    call('ZCARD', zk(q, 'failed')), call('ZCARD', zk(q, 'cancelled')), ct and math.max(now - tonumber(ct), 0) or -1 }
end
return { list, workers() }
