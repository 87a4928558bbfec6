-- bullmq_step.lua - a worker's turn at one queue: jobs leave `active`, then others are taken; all in one call.
--
-- ARGV: 1 base, 2 now, 3 token's stem (a job's token is "<stem>:<its ats>"), 4 jobs wanted, 5 lock ms, 6 worker's name or "",
--       7 limiter max (0 = none), 8 limiter duration ms, 9 metrics points, 10 ends, then for each end
--       what  completed | failed | retry | delay | wait | limit (wait, and nobody takes a job for `delay` ms) | children
--       id, attempt (ats, part of the token)
--       value     returnvalue JSON or failedReason text; retry and delay: "" = it did not fail, and is not charged
--       stack     JSON array ("" = leave it)
--       record    text of the field `mandor` ("" = leave it)
--       how       "<opts.attempts> <delay, ms> <what to keep of its state: count> <age, s> <limit> <lifo: 0 or 1 (retry)>
--                 <doubtful: 0 or 1: an earlier call may have carried it out>"
-- Returns {{code of each end: 0, 1 = it was so already, or why not…}, {job…}, ms until the rate limit ends, when the next delayed job is due (ms) or 0, {ids thrown away},
--          nothing could be taken: how many jobs are still to come or under way (delayed ones count when they are retries)}.
--
-- A command costs more than what it does: what many jobs need is done by one for all of them, before the first leaves or after the last.
--@include _bullmq_queue.lua
--@include _bullmq_finish.lua
local stem, wanted, lock_ms, name = ARGV[3], tonumber(ARGV[4]), ARGV[5], ARGV[6]
local limit_max, limit_ms, points, count = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])
local FIRST, WIDTH = 11, 7
local meta = call('HMGET', P .. 'meta', 'paused', 'concurrency', 'max', 'duration', 'opts.maxLenEvents')
lengths[P] = meta[5]

-- ---- jobs leave ----

local function reversed(list)
    for i = 1, math.floor(#list / 2) do
        list[i], list[#list + 1 - i] = list[#list + 1 - i], list[i]
    end
    return list
end

local hows = {}
local function parse_how(text)
    local n = {}
    for number in text:gmatch('%S+') do
        n[#n + 1] = tonumber(number)
    end
    local how = { attempts = n[1], delay = n[2], keep = { count = n[3], age = n[4], limit = n[5] }, lifo = n[6] == 1, doubtful = n[7] == 1, points = points }
    hows[text] = how
    return how
end

local ends, locks = {}, {}
local childless = true    -- no job that ends here has had children, as far as they matter
local window, near = {}, {}    -- the end of `active`, where jobs that end are; those of them that have not left
local left, leaving, finished = {}, {}, false

local function read_ends()
    local lock_keys, child_keys, ours = {}, {}, {}
    for n = 1, count do
        local i = FIRST + (n - 1) * WIDTH
        local e = { what = ARGV[i], id = ARGV[i + 1], value = ARGV[i + 3], stack = ARGV[i + 4], record = ARGV[i + 5] }
        e.key, e.how, e.attempt = P .. e.id, hows[ARGV[i + 6]] or parse_how(ARGV[i + 6]), ARGV[i + 2]
        e.token = stem .. ':' .. e.attempt
        ends[n], lock_keys[n] = e, e.key .. ':lock'
        child_keys[2 * n - 1], child_keys[2 * n] = e.key .. ':dependencies', e.key .. ':unsuccessful'
    end
    childless = call('EXISTS', unpack(child_keys)) == 0
    locks = call('MGET', unpack(lock_keys))
    for n = 1, count do
        ends[n].lock = lock_keys[n]
        if locks[n] == ends[n].token then
            ours[#ours + 1] = ends[n].id
        end
    end
    if #ours > 0 then
        call('SREM', P .. 'stalled', unpack(ours))
    end
    if count > 1 then
        window = call('LRANGE', P .. 'active', -2 * count, -1)
        for _, id in ipairs(window) do
            near[id] = true
        end
    end
end

-- When the answer to an earlier call was lost: was it carried out?
local function came_true(e, job)
    local state = (e.what == 'completed' or e.what == 'failed') and e.what
    if not job then
        return state and e.how.keep.count == 0
    elseif state then
        return call('ZSCORE', P .. state, e.id)
    elseif e.stack ~= '' then
        return call('HGET', e.key, 'stacktrace') == e.stack
    end
    for _, id in ipairs(call('LRANGE', P .. 'active', 0, -1)) do
        if id == e.id then
            return job[1] ~= e.attempt -- taken again
        end
    end
    return true
end

-- The lock is given up only by who holds it, and nothing else may have happened before.  The job's own record tells that it has.
local function refusal(e, held, job)
    if e.record ~= '' and not held and job and call('HGET', e.key, 'mandor') == e.record or e.how.doubtful and came_true(e, job) then
        return 1
    end
    return not job and -1 or held and -6 or -2
end

local function unlist(id)
    if not near[id] then
        return call('LREM', P .. 'active', -1, id) == 1
    end
    near[id] = nil
    leaving[id], unwritten = true, unwritten + 1
    return true
end

-- The end of `active` is written anew, without those that have left.
local function unlist_near()
    local rest = {}
    if unwritten == 0 then
        return
    end
    unwritten = 0
    for n = #window, 1, -1 do
        local id = window[n]
        if leaving[id] then
            leaving[id] = nil
        else
            rest[#rest + 1] = id
        end
    end
    call('LTRIM', P .. 'active', 0, -#window - 1)
    if #rest > 0 then
        call('RPUSH', P .. 'active', unpack(reversed(rest)))
    end
end

-- It does not end: it is tried again, or goes back to the head of its line, or waits for its children.
local function stay(key, e, job)
    local what, ways = e.what, rarely()
    if what == 'delay' then
        local due = now + math.max(e.how.delay, 0)
        if e.stack ~= '' then
            call('HINCRBY', key, 'atm', 1)
        end
        call('HSET', key, 'delay', e.how.delay)
        ways.push_delayed(P, e.id, due)
        event_trim(P, 'delayed', 'jobId', e.id, 'delay', due)
        return
    elseif what == 'children' and call('SCARD', key .. ':dependencies') > 0 then
        call('ZADD', P .. 'waiting-children', now, e.id)
        event(P, 'waiting-children', 'jobId', e.id, 'prev', 'active')
        return
    elseif what == 'limit' then
        call('SET', P .. 'limiter', '9007199254740991', 'PX', math.max(e.how.delay, 1))
    end
    local priority, retry = tonumber(job[6]) or 0, what == 'retry'
    if priority <= 0 then
        ways.push_wait(P, e.id, (not retry or e.how.lifo) and 'RPUSH' or 'LPUSH')
    elseif retry then
        ways.push_prioritized(P, e.id, priority)
    else
        local _, blocked = waiting(P)
        call('ZADD', P .. 'prioritized', priority * CLASS, e.id)
        wake(P, blocked)
    end
    if retry then
        call('HINCRBY', key, 'atm', 1)
    end
    event_trim(P, 'waiting', 'jobId', e.id, 'prev', 'active')
end

local function take_leave(n)
    local e = ends[n]
    local key, held = e.key, not left[e.id] and locks[n]
    local job = call('HMGET', key, unpack(FINISH_FIELDS))
    if not job[1] and call('EXISTS', key) == 0 then
        return refusal(e, held)
    end
    if not childless and e.what == 'completed' and call('SCARD', key .. ':dependencies') > 0 then
        return -4
    elseif not childless and (e.what == 'completed' or e.what == 'children') and call('EXISTS', key .. ':unsuccessful') == 1 then
        return -9
    elseif held ~= e.token then
        return refusal(e, held, job)
    end
    doomed[#doomed + 1] = e.lock
    left[e.id] = true
    childless = childless and not job[5] -- its successor may be somebody's child
    if e.stack ~= '' then
        call('HSET', key, 'failedReason', e.value, 'stacktrace', e.stack)
    end
    if e.record ~= '' and e.what ~= 'completed' then
        call('HSET', key, 'mandor', e.record)
    end
    if not unlist(e.id) then
        return -3
    end
    if e.what == 'completed' or e.what == 'failed' then
        finish(P, e.id, e.what, job, e.value, e.record, e.how)
        finished = true
    else
        stay(key, e, job)
    end
    return 0
end

-- ---- jobs are taken ----

-- Up to n ids, which are in `active` now; none when nothing waits.
local function next_ids(n)
    if n == 1 then
        local id = call('RPOPLPUSH', P .. 'wait', P .. 'active')
        if id then
            return { id }
        end
    end
    local ids = n > 1 and reversed(call('LRANGE', P .. 'wait', -n, -1)) or {}
    if #ids > 0 then
        call('LTRIM', P .. 'wait', 0, -#ids - 1)
    else
        local popped = call('ZPOPMIN', P .. 'prioritized', n)
        for i = 1, #popped, 2 do
            ids[#ids + 1] = popped[i]
        end
    end
    if #ids > 0 then
        call('LPUSH', P .. 'active', unpack(ids))
    else
        call('DEL', P .. 'pc')
    end
    return ids
end

-- ms until the window is over; 0 = nothing is limited
local function limited(max)
    if not max or (tonumber(call('GET', P .. 'limiter')) or 0) < max then
        return 0
    end
    local ttl = call('PTTL', P .. 'limiter')
    if ttl == 0 then
        call('DEL', P .. 'limiter')
    end
    return math.max(ttl, 0)
end

-- id is in `active`: make it this worker's.  nil when there is no such job.
local function prepare(id, max, duration)
    local key = P .. id
    local job = redis.pcall('HMGET', key, 'name', 'data', 'opts', 'timestamp', 'rjk', 'defa', 'atm', 'attemptsMade', 'stacktrace',
        'mandor', 'ats') -- an error: that key is something else
    if not job[1] then
        call('LREM', P .. 'active', 1, id)
        return nil
    end
    if max and not job[6] then
        if call('INCR', P .. 'limiter') == 1 then
            call('PEXPIRE', P .. 'limiter', math.floor(math.abs(duration)))
        end
    end
    local started = job[11] and string.format('%d', (tonumber(job[11]) or 0) + 1) or '1'
    call('SET', key .. ':lock', stem .. ':' .. started, 'PX', lock_ms)
    event(P, 'active', 'jobId', id, 'prev', 'waiting')
    if name ~= '' then
        call('HSET', key, 'ats', started, 'processedOn', ARGV[2], 'pb', name)
    else
        call('HSET', key, 'ats', started, 'processedOn', ARGV[2])
    end
    job[11], job[12] = id, started
    return job
end

local jobs, thrown, wait_ms, due_ms, nothing, busy = {}, {}, 0, 0, false, 0

local function fetch()
    local concurrency = tonumber(meta[2])
    local active = concurrency and call('LLEN', P .. 'active') or 0
    local max = tonumber(meta[3]) or (limit_max > 0 and limit_max or nil)
    local duration = limit_max > 0 and limit_ms or tonumber(meta[4]) or 0
    local blocked = meta[1] or (concurrency and active >= concurrency)
    local list = P .. 'wait'
    if meta[1] then
        list = waiting(P)
    end
    promote(P, list, blocked)
    while #jobs < wanted do
        wait_ms = limited(max)
        if wait_ms > 0 or meta[1] or (concurrency and active >= concurrency) then
            break
        end
        local n = max and 1 or math.min(wanted - #jobs, concurrency and concurrency - active or wanted)
        local ids = next_ids(n)
        if #ids == 0 then
            local first = call('ZRANGE', P .. 'delayed', 0, 0, 'WITHSCORES')
            due_ms = first[2] and math.floor(tonumber(first[2]) / EXP) or 0
            nothing = #jobs == 0 and due_ms == 0
            break
        end
        for _, id in ipairs(ids) do
            local marker = id:sub(1, 2) == '0:' -- of an ancient version
            local job = not marker and prepare(id, max, duration)
            if job then
                jobs[#jobs + 1] = job
                active = active + 1
            elseif marker then
                call('LREM', P .. 'active', 1, id)
            else
                thrown[#thrown + 1] = id
            end
        end
    end
    if #jobs > 0 then
        call('ZADD', P .. 'marker', 0, '0') -- whoever is idle looks too
        return
    end
    busy = call('LLEN', P .. 'active') -- for who ends when there is nothing left to do
    if not meta[1] then
        busy = busy + call('LLEN', P .. 'wait') + call('ZCARD', P .. 'prioritized')
    end
    for _, id in ipairs(call('ZRANGE', P .. 'delayed', 0, 99)) do
        if call('HEXISTS', P .. id, 'ats') == 1 then
            busy = busy + 1
        end
    end
end

-- Changes nothing, but a server that is full refuses it: before anything is written, and not halfway.
call('SETRANGE', P .. 'id', 0, '')

local codes = {}

local function take_leaves()
    local retried = false
    read_ends()
    for n, e in ipairs(ends) do
        if e.what == 'retry' and not retried then
            retried = true
            promote(P, waiting(P))
        end
        codes[n] = take_leave(n)
    end
end

if count > 0 then -- those before one that cannot be written have left all the same
    local ok, why = pcall(take_leaves)
    unlist_near()
    carry_out()
    if not ok then
        error(why, 0)
    end
end
if wanted > 0 then
    fetch()
end
if finished and (wanted == 0 or nothing) and call('LLEN', P .. 'wait') == 0 and call('LLEN', P .. 'active') == 0 and
    call('ZCARD', P .. 'prioritized') == 0 then
    event(P, 'drained')
end
return { codes, jobs, wait_ms, due_ms, thrown, busy }
