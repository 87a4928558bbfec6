-- _bullmq_rare.lua - what concerns only some of the jobs that leave: parents, deduplication, metrics.

-- The parent as {B = its queue's base, id =, key =, policy flags}, or nil.
local function parent_of(text, key)
    if not key then
        return nil
    end
    local parent = text and decode(text) or {}
    if type(parent.queueKey) == 'string' and parent.id then
        parent.B = parent.queueKey .. ':'
    else -- scheduler ids hold colons, so this is right only for others
        parent.B, parent.id = key:match('^(.*:)([^:]*)$')
    end
    parent.key = key
    return parent.B and parent or nil
end

local function enter_line(parent, from)
    local priority = tonumber(call('HGET', parent.key, 'priority')) or 0
    if priority > 0 then
        push_prioritized(parent.B, parent.id, priority)
    else
        push_wait(parent.B, parent.id, 'RPUSH')
    end
    event(parent.B, 'waiting', 'jobId', parent.id, 'prev', from)
end

-- Out of waiting-children, to where it has to wait now.
local function release_parent(parent, at_once)
    local B, id = parent.B, parent.id
    if call('EXISTS', parent.key) == 0 or call('ZREM', B .. 'waiting-children', id) == 0 then
        return
    end
    local delay = tonumber(call('HGET', parent.key, 'delay')) or 0
    if delay > 0 and not at_once then
        call('ZADD', B .. 'delayed', (now + delay) * EXP, id)
        event(B, 'delayed', 'jobId', id, 'delay', now + delay)
        wake_when_due(B)
        return
    end
    enter_line(parent, 'waiting-children')
end

local function release_if_free(parent)
    if call('SCARD', parent.key .. ':dependencies') == 0 then
        release_parent(parent)
    end
end

local function tell_parent_completed(parent, child, returnvalue)
    if call('SREM', parent.key .. ':dependencies', child) == 1 then
        call('HSET', parent.key .. ':processed', child, returnvalue)
        release_if_free(parent)
    end
end

-- The parent has to fail too: the worker that takes it next finds the reason in `defa`.
local function fail_parent(parent, child)
    local B, id = parent.B, parent.id
    local reason = 'child ' .. child .. ' failed'
    call('ZADD', parent.key .. ':unsuccessful', now, child)
    if call('EXISTS', parent.key) == 0 then
        return
    end
    if call('ZSCORE', B .. 'waiting-children', id) then
        call('HSET', parent.key, 'defa', reason)
        release_parent(parent, true)
    elseif call('ZREM', B .. 'delayed', id) == 1 then
        call('HSET', parent.key, 'delay', 0, 'defa', reason)
        enter_line(parent, 'delayed')
    elseif not call('ZSCORE', B .. 'failed', id) then
        call('HSET', parent.key, 'defa', reason)
    end
end

local function tell_parent_failed(parent, child, reason)
    if not (parent.fpof or parent.cpof or parent.idof or parent.rdof) then
        return -- it waits until the child is retried or removed
    end
    if call('SREM', parent.key .. ':dependencies', child) == 0 then
        return
    end
    if parent.fpof then
        fail_parent(parent, child)
    elseif parent.cpof then
        call('HSET', parent.key .. ':failed', child, reason)
        release_parent(parent)
    else
        if parent.idof then
            call('HSET', parent.key .. ':failed', child, reason)
        end
        release_if_free(parent)
    end
end

-- Its parent does not wait for it any more.
local function detach(B, id)
    local fields = call('HMGET', B .. id, 'parentKey', 'parent')
    local parent = parent_of(fields[2], fields[1])
    if not parent or call('SREM', parent.key .. ':dependencies', B .. id) == 0 or
        call('SCARD', parent.key .. ':dependencies') > 0 or call('EXISTS', parent.key) == 0 then
        return
    end
    if call('ZREM', parent.B .. 'waiting-children', parent.id) == 1 then
        push_wait(parent.B, parent.id, 'RPUSH')
        event(parent.B, 'waiting', 'jobId', parent.id, 'prev', 'waiting-children')
    end
end

-- What was added under this deduplication id while the job ran, and had to wait for its end.
local function add_pending(B, deid)
    local key = B .. 'dn:' .. deid
    local next = call('HMGET', key, 'name', 'data', 'opts', 'jid', 'pk', 'pd', 'pdk', 'rjk')
    if not next[1] then
        return
    end
    carry_out() -- it may get the id of a job that goes
    local counter = call('INCR', B .. 'id')
    local id = next[4] or tostring(counter)
    local opts = decode(next[3])
    local de = type(opts.de) == 'table' and opts.de or {}
    local ttl = tonumber(de.ttl) or 0
    if ttl > 0 and not de.keepLastIfActive then
        call('SET', B .. 'de:' .. deid, id, 'PX', ttl)
    else
        call('SET', B .. 'de:' .. deid, id)
    end
    local fields = { 'deid', deid }
    for i, name in ipairs({ 'parentKey', 'parent' }) do
        if next[4 + i] then
            fields[#fields + 1] = name
            fields[#fields + 1] = next[4 + i]
        end
    end
    if next[8] then
        fields[#fields + 1] = 'rjk'
        fields[#fields + 1] = next[8]
    end
    local delay, priority = tonumber(opts.delay) or 0, tonumber(opts.priority) or 0
    store(B, id, next[1], next[2] or '{}', next[3] or '{}', tonumber(opts.timestamp) or now, delay, priority, fields)
    enqueue(B, id, delay, priority, opts.lifo == true)
    if next[7] then
        call('SADD', next[7], B .. id)
    end
    call('DEL', key)
end

local function end_deduplication(B, id, deid)
    local key = B .. 'de:' .. deid
    local ttl = call('PTTL', key)
    if ttl == 0 or (ttl == -1 and call('GET', key) == id) then
        call('DEL', key)
    end
    add_pending(B, deid)
end

local function count_metrics(B, state, points)
    local key = B .. 'metrics:' .. state
    local count = call('HINCRBY', key, 'count', 1) - 1
    local prev = call('HMGET', key, 'prevTS', 'prevCount')
    if not prev[1] then
        call('HSET', key, 'prevTS', now, 'prevCount', 0)
        return
    end
    local minutes = math.min(math.floor(now / 60000) - math.floor(tonumber(prev[1]) / 60000), points)
    if minutes > 0 then
        call('LPUSH', key .. ':data', count - tonumber(prev[2] or 0))
        for _ = 2, minutes do
            call('LPUSH', key .. ':data', 0)
        end
        call('LTRIM', key .. ':data', 0, points - 1)
        call('HSET', key, 'prevCount', count, 'prevTS', now)
    end
end
