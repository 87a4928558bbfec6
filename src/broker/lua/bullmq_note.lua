-- bullmq_note.lua - what a running job says of itself.
--
-- ARGV: 1 base, 2 now, 3 id, 4 progress | data | log | record, 5 value (JSON, JSON, text, text of the field `mandor`),
--       6 log: rows to keep (0 = all); record: token of who may write it.
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
if ARGV[4] == 'record' then
    if call('GET', key .. ':lock') ~= ARGV[6] then
        return -2
    end
    local cancel, old = '{"cancel_requested":true', call('HGET', key, 'mandor')
    local asked = old and old:sub(1, #cancel) == cancel
    call('HSET', key, 'mandor', asked and cancel .. ',' .. ARGV[5]:sub(2) or ARGV[5])
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
