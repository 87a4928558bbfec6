-- _bullmq_queue.lua - what all scripts share: how others hear of a queue's jobs, and who may take them.
--
-- The body of a script runs anew at each call, and makes its functions each time: that of one which is called for each job has only
-- those that most calls need, and the others inside of a function that makes them when the first is wanted.
--
-- KEYS[1] = a key of the queue (routes the call in a cluster), ARGV[1] = "<prefix>:<queue>:", ARGV[2] = wall clock in ms.
-- Scores have up to 16 digits: they go to redis.call() as numbers, never through tostring().
local call = redis.call
local P, now = ARGV[1], tonumber(ARGV[2])
local EXP = 4096           -- delayed scores: that many jobs a millisecond
local CLASS = 4294967296   -- prioritized scores: priority * CLASS + counter

local lengths = {}
local function stream_length(B)
    local n = lengths[B]
    if not n then
        n = call('HGET', B .. 'meta', 'opts.maxLenEvents')
        if not n then
            call('HSET', B .. 'meta', 'opts.maxLenEvents', 10000)
            n = '10000'
        end
        lengths[B] = n
    end
    return n
end

local function event(B, ...)
    call('XADD', B .. 'events', '*', 'event', ...)
end

local function event_trim(B, ...)
    call('XADD', B .. 'events', 'MAXLEN', '~', stream_length(B), '*', 'event', ...)
end

local unwritten = 0 -- jobs that have left P's `active`, which does not show it yet

-- Where plain jobs wait, and whether nobody may take them now.  A queue that BullMQ 5 paused has its jobs in `paused`, and its
-- resume overwrites `wait`: what were put there meanwhile would be lost.
local function waiting(B)
    local meta = call('HMGET', B .. 'meta', 'paused', 'concurrency', 'version')
    if meta[1] then
        if call('EXISTS', B .. 'paused') == 1 or (meta[3] and meta[3]:sub(1, 8) == 'bullmq:5') then
            return B .. 'paused', true
        end
        return B .. 'wait', true
    end
    return B .. 'wait', meta[2] and call('LLEN', B .. 'active') - (B == P and unwritten or 0) >= (tonumber(meta[2]) or 0)
end

local function wake(B, blocked)
    if not blocked then
        call('ZADD', B .. 'marker', 0, '0')
    end
end

-- Delayed jobs whose time has come; also while nobody may take them.
local function promote(B, list, blocked)
    local ids = call('ZRANGEBYSCORE', B .. 'delayed', 0, (now + 1) * EXP - 1, 'LIMIT', 0, 1000)
    if #ids == 0 then
        return 0
    end
    call('ZREM', B .. 'delayed', unpack(ids))
    for _, id in ipairs(ids) do
        local priority = tonumber(call('HGET', B .. id, 'priority')) or 0
        if priority > 0 then
            call('ZADD', B .. 'prioritized', priority * CLASS + call('INCR', B .. 'pc') % CLASS, id)
        else
            call('LPUSH', list, id)
        end
        event(B, 'waiting', 'jobId', id, 'prev', 'delayed')
        call('HSET', B .. id, 'delay', 0)
    end
    wake(B, blocked)
    return #ids
end
