-- bullmq_note.lua - what a running job says of itself.
--
-- ARGV: 1 base, 2 now, 3 id, 4 progress | data | log, 5 value (JSON, JSON, text), 6 rows of log to keep (0 = all).
-- Returns rows of log, or -1 when there is no such job.
--@include _bullmq_queue.lua
local key = P .. ARGV[3]
if call('EXISTS', key) == 0 then
    return -1
end
if ARGV[4] == 'progress' then
    call('HSET', key, 'progress', ARGV[5])
    event_trim(P, 'progress', 'jobId', ARGV[3], 'data', ARGV[5])
    return 0
end
if ARGV[4] == 'data' then
    call('HSET', key, 'data', ARGV[5])
    return 0
end
local rows, keep = call('RPUSH', key .. ':logs', ARGV[5]), tonumber(ARGV[6])
if keep > 0 then
    call('LTRIM', key .. ':logs', -keep, -1)
    return math.min(rows, keep)
end
return rows
