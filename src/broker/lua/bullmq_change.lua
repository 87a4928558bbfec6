-- bullmq_change.lua - cancel, retry or remove one job.
--
-- ARGV: 1 base, 2 now, 3 cancel | retry | remove, 4 id, 5 record (cancel: of a job that had not begun).
-- Returns 1 done; 2 cancel: asked of who runs it; -1 no such job; -3 not in a state for that; -8 belongs to a scheduler;
--         -12 runs, or has children that have not ended.
--@include _bullmq_queue.lua
--@include _bullmq_enter.lua
--@include _bullmq_finish.lua
local parent_of, detach = rarely().parent_of, rarely().detach
local what, id = ARGV[3], ARGV[4]
local key = P .. id
if call('EXISTS', key) == 0 then
    return -1
end
local locked = call('EXISTS', key .. ':lock') == 1

-- Out of wherever it waits.
local function take_out()
    return call('LREM', P .. 'wait', 0, id) + call('LREM', P .. 'paused', 0, id) + call('ZREM', P .. 'prioritized', id) +
        call('ZREM', P .. 'delayed', id) + call('ZREM', P .. 'waiting-children', id) > 0
end

-- The iteration that a scheduler waits for: without it the schedule would stop.
local function scheduled()
    local rjk = call('HGET', key, 'rjk')
    local due = rjk and call('ZSCORE', P .. 'repeat', rjk)
    return due and id == string.format('repeat:%s:%.0f', rjk, tonumber(due))
end

if what == 'cancel' then
    if call('ZSCORE', P .. 'completed', id) or call('ZSCORE', P .. 'failed', id) then
        return -3
    elseif locked then
        local record = call('HGET', key, 'mandor') or ''
        if record:sub(1, 24) ~= '{"cancel_requested":true' then
            local rest = record:sub(1, 1) == '{' and record:sub(2) or '}'
            call('HSET', key, 'mandor', '{"cancel_requested":true' .. (rest == '}' and '' or ',') .. rest)
        end
        call('PUBLISH', P .. 'mandor', id)
        return 2
    elseif scheduled() then
        return -8
    elseif not take_out() then
        return -3 -- active, and its worker has gone: the stalled check has it first
    end
    call('HSET', key, 'failedReason', 'cancelled', 'stacktrace', '[]')
    finish(P, id, 'failed', call('HMGET', key, unpack(FINISH_FIELDS)), 'cancelled', ARGV[5],
        { attempts = math.huge, points = 0, keep = { count = -1, age = 0, limit = 1000 } })
    carry_out()
    return 1
end

if what == 'retry' then
    local from
    if call('ZREM', P .. 'failed', id) == 1 then
        from = 'failed'
    elseif call('ZREM', P .. 'completed', id) == 1 then
        from = 'completed'
    else
        return -3
    end
    call('HDEL', key, 'finishedOn', 'processedOn', 'failedReason', 'returnvalue', 'defa', 'mandor')
    call('HSET', key, 'atm', 0)
    local fields = call('HMGET', key, 'parentKey', 'parent', 'priority', 'opts')
    local parent = parent_of(fields[2], fields[1])
    if parent and call('EXISTS', parent.key) == 1 and call('ZREM', parent.key .. ':unsuccessful', key) +
        call('HDEL', parent.key .. ':failed', key) + call('HDEL', parent.key .. ':processed', key) > 0 then
        call('SADD', parent.key .. ':dependencies', key)
    end
    local priority = tonumber(fields[3]) or 0
    if priority > 0 then
        push_prioritized(P, id, priority)
    else
        push_wait(P, id, decode(fields[4]).lifo == true and 'RPUSH' or 'LPUSH')
    end
    event_trim(P, 'waiting', 'jobId', id, 'prev', from)
    return 1
end

if locked or call('SCARD', key .. ':dependencies') > 0 then
    return -12
elseif scheduled() then
    return -8
end
local state = call('ZREM', P .. 'completed', id) == 1 and 'completed' or call('ZREM', P .. 'failed', id) == 1 and 'failed'
if not state and not take_out() then
    return -12 -- active without a lock
end
local deid = call('HGET', key, 'deid')
if deid and call('GET', P .. 'de:' .. deid) == id then
    call('DEL', P .. 'de:' .. deid, P .. 'dn:' .. deid)
end
detach(P, id)
delete(P, id)
carry_out()
event_trim(P, 'removed', 'jobId', id, 'prev', state or 'waiting')
return 1
