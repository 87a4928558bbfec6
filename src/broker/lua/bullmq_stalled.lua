-- bullmq_stalled.lua - jobs whose worker has gone: active, no lock, and so at the check before too.
--
-- ARGV: 1 base, 2 now, 3 interval ms, 4 how often a job may stall.  Returns {ms until the next check may be made, id…}.
--@include _bullmq_queue.lua
--@include _bullmq_enter.lua
local rest = call('PTTL', P .. 'stalled-check')
if rest ~= -2 then
    return { rest }
end
call('SET', P .. 'stalled-check', now, 'PX', ARGV[3])
call('XTRIM', P .. 'events', 'MAXLEN', '~', stream_length(P))

-- A scheduler's job may stall as often as it likes: its successor depends on it.
local function scheduled(key)
    local rjk = call('HGET', key, 'rjk')
    return rjk and (call('EXISTS', P .. 'repeat:' .. rjk) == 1 or call('ZSCORE', P .. 'repeat', rjk))
end

local suspects = call('SMEMBERS', P .. 'stalled')
call('DEL', P .. 'stalled')
local found = { tonumber(ARGV[3]) }
for _, id in ipairs(suspects) do
    local key = P .. id
    if call('EXISTS', key .. ':lock') == 0 and call('LREM', P .. 'active', 1, id) > 0 then
        if call('EXISTS', key) == 1 then
            if call('HINCRBY', key, 'stc', 1) > tonumber(ARGV[4]) and not scheduled(key) then
                call('HSET', key, 'defa', 'job stalled more than allowable limit')
            end
            push_wait(P, id, 'RPUSH')
            event(P, 'waiting', 'jobId', id, 'prev', 'active')
            event(P, 'stalled', 'jobId', id)
        end
        found[#found + 1] = id
    end
end
local active = call('LRANGE', P .. 'active', 0, -1)
for from = 1, #active, 5000 do
    call('SADD', P .. 'stalled', unpack(active, from, math.min(from + 4999, #active)))
end
return found
