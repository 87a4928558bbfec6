-- bullmq_pause.lua - a queue pauses, in the manner of the version that looks after it, or goes on.
--
-- ARGV: 1 base, 2 now, 3 pause | resume.  Returns 1 when that changed something.
--@include _bullmq_queue.lua
--@include _bullmq_enter.lua
if ARGV[3] == 'pause' then
    local changed = call('HSET', P .. 'meta', 'paused', 1)
    local version = call('HGET', P .. 'meta', 'version')
    if version and version:sub(1, 8) == 'bullmq:5' and call('EXISTS', P .. 'wait') == 1 and
        call('EXISTS', P .. 'paused') == 0 then
        call('RENAME', P .. 'wait', P .. 'paused')
    end
    call('DEL', P .. 'marker')
    event(P, 'paused')
    return changed
end
local changed = call('HDEL', P .. 'meta', 'paused')
while true do -- newest first, so that what waited longest ends at the right end
    local ids = call('LRANGE', P .. 'paused', 0, 4999)
    if #ids == 0 then
        break
    end
    call('LTRIM', P .. 'paused', #ids, -1)
    call('RPUSH', P .. 'wait', unpack(ids))
end
if call('LLEN', P .. 'wait') + call('ZCARD', P .. 'prioritized') > 0 then
    wake(P, false)
else
    wake_when_due(P)
end
event(P, 'resumed')
return changed
