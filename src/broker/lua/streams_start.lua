-- ARGV: worker, lease in ms, id, attempt, attempts or 0, wall clock in ms, nonce.  Returns the new attempt, -1 (cancelled), ESTALE.
--@include _streams.lua
local worker, id, attempt = ARGV[1], ARGV[3], ARGV[4]
local j = held(id, worker, attempt)
if not j then
  local again = get(id, 'st', 'w', 'at', 'sn')
  if again[1] == 'active' and again[2] == worker and again[4] == ARGV[7] then
    return tonumber(again[3]) -- the answer to the first time was lost
  end
  return ESTALE
end
if j[4] == '1' then
  return ESTALE
end
if j[5] then
  return -1
end
extend(id, j, worker, tonumber(ARGV[2]))
call('HSET', jk(id), 'sd', 1, 'sm', ARGV[6], 'ph', 'starting', 'sn', ARGV[7])
if ARGV[5] ~= '0' then
  call('HSET', jk(id), 'am', ARGV[5])
end
return call('HINCRBY', jk(id), 'at', 1)
