-- ARGV: ids.  Returns those of which there is no job.
--@include _streams.lua
local gone = {}
for _, id in ipairs(ARGV) do
  if call('EXISTS', jk(id)) == 0 then
    gone[#gone + 1] = id
  end
end
return gone
