-- ARGV: worker, then id, attempt of each.  Returns how many went back.
--@include _streams.lua
local count = 0
for i = 2, #ARGV, 2 do
  local id = ARGV[i]
  local j = held(id, ARGV[1], ARGV[i + 1])
  if j and j[4] ~= '1' then
    call('HDEL', jk(id), 'lu', 'ph', 'cn', 'ln')
    forget_entry(id, j[7], j[6])
    leave(id, j[7], 'active')
    if j[5] then
      make_final(id, j[7], 'cancelled', now)
    else
      make_ready(id, j[7], tonumber(call('HGET', jk(id), 'pr')))
    end
    count = count + 1
  end
end
if count > 0 then
  event('back')
end
return count
