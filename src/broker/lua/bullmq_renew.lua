-- bullmq_renew.lua - locks of running jobs are held on to; a lock that is gone is never made again.
--
-- ARGV: 1 base, 2 now, 3 token's stem, 4 lock ms, then id, attempt for each.
-- Returns for each 1 = held, 0 = lost, 2 = held, and somebody asked for its cancellation.
--@include _bullmq_queue.lua
local answer = {}
for i = 5, #ARGV, 2 do
    local id = ARGV[i]
    local key = P .. id .. ':lock'
    local token = ARGV[3] .. ':' .. ARGV[i + 1]
    local code = 0
    if call('GET', key) == token then
        call('PEXPIRE', key, ARGV[4]) -- also a server that is full takes that
        call('SREM', P .. 'stalled', id)
        local record = call('HGET', P .. id, 'mandor')
        code = record and record:sub(1, 24) == '{"cancel_requested":true' and 2 or 1
    end
    answer[#answer + 1] = code
end
return answer
