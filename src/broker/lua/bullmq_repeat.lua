-- bullmq_repeat.lua - a job that a scheduler made was taken: its next iteration is made now, not when this one ends.
--
-- ARGV: 1 base, 2 now, 3 scheduler's id, 4 this job's id, 5 next ms by pattern ("" = by `every`), 6 every from the job's opts,
--       7 offset from the job's opts, 8 opts of the next job before what only this script knows: JSON text up to, without, its last
--       brace, 9 priority, 10 lifo.
-- Returns {code, id of the next job, ms}: 1 made; 0 not needed; -1 there is no such scheduler any more; -2 a repeatable of old.
--@include _bullmq_queue.lua
--@include _bullmq_enter.lua
local sid = ARGV[3]
local prev = tonumber(call('ZSCORE', P .. 'repeat', sid))
local hash = P .. 'repeat:' .. sid
if not prev then
    return { -1 }
end
local fields = call('HMGET', hash, 'name', 'data', 'every', 'offset', 'ic')
if not fields[5] then
    return { -2 }
end
if ARGV[4] ~= string.format('repeat:%s:%.0f', sid, prev) then
    return { 0 }
end
local next = tonumber(ARGV[5])
if not next then
    local every = tonumber(fields[3]) or tonumber(ARGV[6])
    if not every or every <= 0 then
        return { -1 }
    end
    next = prev + every
    if next < now then
        local aligned = math.floor(now / every) * every + (tonumber(fields[4]) or tonumber(ARGV[7]) or 0)
        next = aligned > now and aligned or aligned + every
    end
end
local id = string.format('repeat:%s:%.0f', sid, next)
if call('EXISTS', P .. id) == 1 then
    event_trim(P, 'duplicated', 'jobId', id)
    return { 0, id }
end
call('ZADD', P .. 'repeat', next, sid)
call('HINCRBY', hash, 'ic', 1)
call('INCR', P .. 'id')
local delay = math.max(0, next - now)
local priority = tonumber(ARGV[9]) or 0
local opts = string.format('%s,"jobId":%s,"repeatJobKey":%s,"delay":%.0f,"timestamp":%.0f%s}', ARGV[8], cjson.encode(id),
    cjson.encode(sid), delay, now, ARGV[5] ~= '' and string.format(',"prevMillis":%.0f', next) or '')
store(P, id, fields[1] or '', fields[2] or '{}', opts, now, delay, priority, { 'rjk', sid })
enqueue(P, id, delay, priority, ARGV[10] == '1')
return { 1, id, next }
