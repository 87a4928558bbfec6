-- _bullmq_queue.lua - what all scripts share: how a job enters a queue, and how the others hear of it.
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
    return B .. 'wait', meta[2] and call('LLEN', B .. 'active') >= (tonumber(meta[2]) or 0)
end

local function wake(B, blocked)
    if not blocked then
        call('ZADD', B .. 'marker', 0, '0')
    end
end

local function push_wait(B, id, side)
    local list, blocked = waiting(B)
    call(side, list, id)
    wake(B, blocked)
end

local function push_prioritized(B, id, priority)
    local _, blocked = waiting(B)
    local turn = call('INCR', B .. 'pc')
    call('ZADD', B .. 'prioritized', priority * CLASS + turn % CLASS, id)
    wake(B, blocked)
end

local function wake_when_due(B)
    local first = call('ZRANGE', B .. 'delayed', 0, 0, 'WITHSCORES')
    if first[2] then
        call('ZADD', B .. 'marker', tonumber(first[2]) / EXP, '1')
    end
end

-- First in, first out also within one millisecond.
local function push_delayed(B, id, due)
    local low = due * EXP
    local last = call('ZREVRANGEBYSCORE', B .. 'delayed', low + EXP - 1, low, 'WITHSCORES', 'LIMIT', 0, 1)
    local score = low
    if last[2] then
        score = math.min(tonumber(last[2]) + 1, low + EXP - 1)
    end
    call('ZADD', B .. 'delayed', score, id)
    wake_when_due(B)
end

-- A new job, stored already, takes its place.
local function enqueue(B, id, delay, priority, lifo)
    if delay > 0 then
        push_delayed(B, id, now + delay)
        event_trim(B, 'delayed', 'jobId', id, 'delay', now + delay)
        return
    end
    if priority > 0 then
        push_prioritized(B, id, priority)
    else
        push_wait(B, id, lifo and 'RPUSH' or 'LPUSH')
    end
    event_trim(B, 'waiting', 'jobId', id)
end

-- fields: further pairs of the hash (parentKey, parent, rjk, deid).
local function store(B, id, name, data, opts, stamp, delay, priority, fields)
    call('HMSET', B .. id, 'name', name, 'data', data, 'opts', opts, 'timestamp', stamp, 'delay', delay,
        'priority', priority, unpack(fields))
    event(B, 'added', 'jobId', id, 'name', name)
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

local function decode(text)
    local ok, value = pcall(cjson.decode, text or '{}')
    return ok and type(value) == 'table' and value or {}
end
