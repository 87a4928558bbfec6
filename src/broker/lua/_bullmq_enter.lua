-- _bullmq_enter.lua - how a job enters a queue.  Follows _bullmq_queue.lua.

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

local function decode(text)
    local ok, value = pcall(cjson.decode, text or '{}')
    return ok and type(value) == 'table' and value or {}
end
