-- bullmq_add.lua - a new job.
--
-- ARGV: 1 base, 2 now, 3 name, 4 data, 5 opts, 6 id wanted ("" = the counter's), 7 delay ms, 8 priority, 9 lifo,
--       10 deduplication id ("" = none), 11 its ttl ms (0 = until the job has ended), 12 version for a queue that has none.
-- Returns {id, 1 when that is another job's}.
--@include _bullmq_queue.lua
--@include _bullmq_enter.lua
local counter = call('INCR', P .. 'id')
call('HSETNX', P .. 'meta', 'version', ARGV[12])
stream_length(P)
local id, deid, ttl = ARGV[6], ARGV[10], tonumber(ARGV[11])
if id == '' then
    id = tostring(counter)
elseif call('EXISTS', P .. id) == 1 then
    event_trim(P, 'duplicated', 'jobId', id)
    return { id, 1 }
end

local fields = {}
if deid ~= '' then
    local key = P .. 'de:' .. deid
    local holder = call('GET', key)
    if holder and call('PTTL', key) == -1 and call('EXISTS', P .. holder) == 0 then
        call('DEL', key, P .. 'dn:' .. deid) -- its job was removed by other means
        holder = nil
    end
    if holder then
        event_trim(P, 'deduplicated', 'jobId', holder, 'deduplicationId', deid, 'deduplicatedJobId', id)
        return { holder, 1 }
    end
    if ttl > 0 then
        call('SET', key, id, 'PX', ttl)
    else
        call('SET', key, id)
    end
    fields = { 'deid', deid }
end

local delay, priority = tonumber(ARGV[7]), tonumber(ARGV[8])
store(P, id, ARGV[3], ARGV[4], ARGV[5], now, delay, priority, fields)
enqueue(P, id, delay, priority, ARGV[9] == '1')
return { id, 0 }
