-- bullmq_orphans.lua - jobs that this worker was given by an answer that it never got: active under its tokens.
--
-- ARGV: 1 base, 2 now, 3 token's stem.  Returns {id, attempt, …} of all that are locked by it.
--@include _bullmq_queue.lua
local found, stem = {}, ARGV[3] .. ':'
for _, id in ipairs(call('LRANGE', P .. 'active', 0, -1)) do
    local token = call('GET', P .. id .. ':lock')
    if token and token:sub(1, #stem) == stem then
        found[#found + 1] = id
        found[#found + 1] = token:sub(#stem + 1)
    end
end
return found
