-- ARGV: worker, 'forget' when the worker is gone and what it did not start goes back, nonce of a lease whose answer it never got, or ''.
-- Returns its jobs: {id, attempt, started, cancel requested, used, put backs, started at, spec, attempts, queue}, …
--@include _streams.lua
local list, back = {}, 0
for _, id in ipairs(call('ZRANGE', P .. ':leases', 0, -1)) do
  local j = get(id, 'w', 'at', 'sd', 'cr', 'au', 'pb', 'sm', 'spec', 'am', 'q', 'e', 'pr', 'ln')
  if j[1] == ARGV[1] then
    if ARGV[2] == 'forget' and (j[3] ~= '1' or j[13] == ARGV[3]) then
      go_back(id, j[10], j[11], j[12], j[4])
      back = back + 1
    else
      list[#list + 1] = { id, j[2], j[3] == '1' and 1 or 0, j[4] and 1 or 0, j[5], j[6], j[7] or '0', j[8], j[9], j[10] }
    end
  end
end
if ARGV[2] == 'forget' and #list == 0 then
  for _, q in ipairs(call('SMEMBERS', P .. ':queues')) do
    redis.pcall('XGROUP', 'DELCONSUMER', sk(q), GROUP, ARGV[1])
  end
  call('SREM', P .. ':workers', ARGV[1])
  call('ZREM', P .. ':alive', ARGV[1])
  call('DEL', P .. ':w:' .. ARGV[1])
end
if back > 0 then
  event('back')
end
return { back, list }
