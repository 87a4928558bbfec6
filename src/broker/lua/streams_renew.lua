-- ARGV: worker, lease in ms, then id, attempt of each.  Returns flags: 1 lost, 2 cancel requested.
--@include _streams.lua
local flags = {}
for i = 3, #ARGV, 2 do
  local j = held(ARGV[i], ARGV[1], ARGV[i + 1])
  if j then
    extend(ARGV[i], j, ARGV[1], tonumber(ARGV[2]))
  end
  flags[#flags + 1] = not j and 1 or j[5] and 2 or 0
end
return flags
