-- ARGV: worker, lease in ms, then id, attempt of each.  Returns flags: 1 lost, 2 cancel requested, 3 lost by the server.
--@include _streams.lua
local flags = {}
for i = 3, #ARGV, 2 do
  local j, was = held(ARGV[i], ARGV[1], ARGV[i + 1])
  if j then
    extend(ARGV[i], j, ARGV[1], tonumber(ARGV[2]))
  end
  flags[#flags + 1] = j and (j[5] and 2 or 0) or refusal(was, ARGV[i + 1]) == ESTALE and 1 or 3
end
return flags
