-- ARGV: worker, then id, attempt of each.  Returns how many went back.
--@include _streams.lua
local count = 0
for i = 2, #ARGV, 2 do
  local id = ARGV[i]
  local j = held(id, ARGV[1], ARGV[i + 1])
  if j and j[4] ~= '1' then
    go_back(id, j[7], j[6], j[14], j[5])
    count = count + 1
  end
end
if count > 0 then
  event('back')
end
return count
