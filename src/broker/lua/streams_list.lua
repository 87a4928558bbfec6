-- ARGV: queue or '', state or '', after or '', limit.  Returns {{id, {field, value, …}}, …}, newest first.
--@include _streams.lua
local queues = ARGV[1] ~= '' and { ARGV[1] } or call('SMEMBERS', P .. ':queues')
local st, after, limit = ARGV[2], ARGV[3], tonumber(ARGV[4])
local sets = st == '' and { '' } or st == 'delayed' and { 'due', 'later' } or { st }
local found = {}
for _, q in ipairs(queues) do
  for _, set in ipairs(sets) do
    local key = set == '' and P .. ':ids:' .. q or zk(q, set)
    local top, by_id = '+inf', set == '' or set == 'waiting' or set == 'active'
    if after ~= '' then
      local j = get(after, 'fm', 'due')
      top = by_id and '(' .. after or (set == 'due' or set == 'later') and (j[2] or '+inf') or (j[1] or '+inf')
    end
    local rows = call('ZREVRANGEBYSCORE', key, top, '-inf', 'WITHSCORES', 'LIMIT', 0, limit + 64)
    for i = 1, #rows, 2 do
      found[#found + 1] = { rows[i], tonumber(rows[i + 1]) }
    end
  end
end
table.sort(found, function(a, b)
  if a[2] ~= b[2] then
    return a[2] > b[2]
  end
  return tonumber(a[1]) > tonumber(b[1])
end)
local list, skip = {}, false
if after ~= '' then
  for _, f in ipairs(found) do
    skip = skip or f[1] == after
  end
end
for _, f in ipairs(found) do
  if skip then
    skip = f[1] ~= after
  elseif #list < limit then
    list[#list + 1] = { f[1], call('HGETALL', jk(f[1])) }
  end
end
return list
