-- bullmq_step.lua - a worker's turn at one queue: jobs leave `active`, then others are taken; all in one call.
--
-- ARGV: 1 base, 2 now, 3 token's stem (a job's token is "<stem>:<its ats>"), 4 jobs wanted, 5 lock ms, 6 worker's name or "",
--       7 limiter max (0 = none), 8 limiter duration ms, 9 metrics points, 10 ends, then for each end
--       what  completed | failed | retry | delay | wait | limit (wait, and nobody takes a job for `delay` ms) | children
--       id, attempt (ats, part of the token)
--       value     returnvalue JSON or failedReason text; retry and delay: "" = it did not fail, and is not charged
--       stack     JSON array ("" = leave it)
--       record    text of the field `mandor` ("" = leave it)
--       attempts  opts.attempts
--       delay     ms (delay)
--       count, age (s), limit    what to keep of its state
--       lifo      "1" (retry)
-- Returns {{code of each end…}, {job…}, ms until the rate limit ends, when the next delayed job is due (ms) or 0, {ids thrown away},
--          nothing could be taken: how many jobs are still to come or under way (delayed ones count when they are retries)}.
--@include _bullmq_queue.lua
--@include _bullmq_finish.lua
local stem, wanted, lock_ms, name = ARGV[3], tonumber(ARGV[4]), ARGV[5], ARGV[6]
local limit_max, limit_ms, points, count = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])
local FIRST, WIDTH = 11, 12

-- ---- jobs leave ----

-- The lock is given up only by who holds it, and nothing else may have happened before.  When the answer to an earlier call was lost,
-- the job's own record tells that it was carried out.
local function release(key, id, token, record)
    local held = call('GET', key .. ':lock')
    if held == token then
        call('DEL', key .. ':lock')
        call('SREM', P .. 'stalled', id)
        return 0
    end
    if record ~= '' and not held and call('HGET', key, 'mandor') == record then
        return 1
    end
    return held and -6 or -2
end

local function note_failure(key, e)
    if e.stack ~= '' then
        call('HSET', key, 'failedReason', e.value, 'stacktrace', e.stack)
    end
    if e.record ~= '' and e.what ~= 'completed' then
        call('HSET', key, 'mandor', e.record)
    end
end

local leave = {}

function leave.completed(key, e)
    finish(P, e.id, 'completed', e)
end

function leave.failed(key, e)
    finish(P, e.id, 'failed', e)
end

function leave.retry(key, e)
    local priority = tonumber(call('HGET', key, 'priority')) or 0
    if priority > 0 then
        push_prioritized(P, e.id, priority)
    else
        push_wait(P, e.id, e.lifo and 'RPUSH' or 'LPUSH')
    end
    call('HINCRBY', key, 'atm', 1)
    event_trim(P, 'waiting', 'jobId', e.id, 'prev', 'active')
end

function leave.delay(key, e)
    local due = now + math.max(e.delay, 0)
    if e.stack ~= '' then
        call('HINCRBY', key, 'atm', 1)
    end
    call('HSET', key, 'delay', e.delay)
    push_delayed(P, e.id, due)
    event_trim(P, 'delayed', 'jobId', e.id, 'delay', due)
end

function leave.wait(key, e) -- to the head of its line
    local priority = tonumber(call('HGET', key, 'priority')) or 0
    if priority > 0 then
        local _, blocked = waiting(P)
        call('ZADD', P .. 'prioritized', priority * CLASS, e.id)
        wake(P, blocked)
    else
        push_wait(P, e.id, 'RPUSH')
    end
    event_trim(P, 'waiting', 'jobId', e.id, 'prev', 'active')
end

function leave.limit(key, e)
    call('SET', P .. 'limiter', '9007199254740991', 'PX', math.max(e.delay, 1))
    leave.wait(key, e)
end

-- Until its children have ended; when none is left it waits for its turn at once.
function leave.children(key, e)
    if call('SCARD', key .. ':dependencies') == 0 then
        leave.wait(key, e)
        return
    end
    call('ZADD', P .. 'waiting-children', now, e.id)
    event(P, 'waiting-children', 'jobId', e.id, 'prev', 'active')
end

local function take_leave(i)
    local e = { what = ARGV[i], id = ARGV[i + 1], value = ARGV[i + 3], stack = ARGV[i + 4], record = ARGV[i + 5],
        attempts = tonumber(ARGV[i + 6]), delay = tonumber(ARGV[i + 7]), points = points, lifo = ARGV[i + 11] == '1',
        keep = { count = tonumber(ARGV[i + 8]), age = tonumber(ARGV[i + 9]), limit = tonumber(ARGV[i + 10]) } }
    local key = P .. e.id
    if call('EXISTS', key) == 0 then
        return -1
    end
    if e.what == 'completed' then
        if call('SCARD', key .. ':dependencies') > 0 then
            return -4
        end
        if call('EXISTS', key .. ':unsuccessful') == 1 then
            return -9
        end
    elseif e.what == 'children' and call('EXISTS', key .. ':unsuccessful') == 1 then
        return -9
    end
    local code = release(key, e.id, stem .. ':' .. ARGV[i + 2], e.record)
    if code ~= 0 then
        return math.min(code, 0)
    end
    note_failure(key, e)
    if call('LREM', P .. 'active', -1, e.id) < 1 then
        return -3
    end
    leave[e.what](key, e)
    return 0
end

-- ---- jobs are taken ----

local FIELDS = { 'name', 'data', 'opts', 'timestamp', 'rjk', 'defa', 'atm', 'attemptsMade', 'stacktrace', 'mandor' }

local function next_id()
    while true do
        local id = call('RPOPLPUSH', P .. 'wait', P .. 'active')
        if not id then
            break
        end
        if id:sub(1, 2) ~= '0:' then
            return id
        end
        call('LREM', P .. 'active', 1, id) -- a marker of an ancient version
    end
    local popped = call('ZPOPMIN', P .. 'prioritized')
    if popped[1] then
        call('LPUSH', P .. 'active', popped[1])
        return popped[1]
    end
    call('DEL', P .. 'pc')
    return nil
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

local function charge(duration)
    if call('INCR', P .. 'limiter') == 1 then
        call('PEXPIRE', P .. 'limiter', math.floor(math.abs(duration)))
    end
end

-- id is in `active`: make it this worker's.  nil when there is no such job.
local function prepare(id, max, duration)
    local key = P .. id
    local job = redis.pcall('HMGET', key, unpack(FIELDS)) -- an error: that key is something else
    if not job[1] then
        call('LREM', P .. 'active', 1, id)
        return nil
    end
    if max and not job[6] then
        charge(duration)
    end
    local started = call('HINCRBY', key, 'ats', 1)
    call('SET', key .. ':lock', stem .. ':' .. started, 'PX', lock_ms)
    event(P, 'active', 'jobId', id, 'prev', 'waiting')
    if name ~= '' then
        call('HSET', key, 'processedOn', now, 'pb', name)
    else
        call('HSET', key, 'processedOn', now)
    end
    for i = 1, #FIELDS do
        job[i] = job[i] or ''
    end
    job[#job + 1] = id
    job[#job + 1] = started
    return job
end

local jobs, thrown, wait_ms, due_ms, nothing, busy = {}, {}, 0, 0, false, 0

-- For who ends when there is nothing left to do.
local function count_busy(paused)
    busy = call('LLEN', P .. 'active')
    if not paused then
        busy = busy + call('LLEN', P .. 'wait') + call('ZCARD', P .. 'prioritized')
    end
    for _, id in ipairs(call('ZRANGE', P .. 'delayed', 0, 99)) do
        if call('HEXISTS', P .. id, 'ats') == 1 then
            busy = busy + 1
        end
    end
end

local function fetch()
    local meta = call('HMGET', P .. 'meta', 'paused', 'concurrency', 'max', 'duration')
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
        local id = next_id()
        if not id then
            local first = call('ZRANGE', P .. 'delayed', 0, 0, 'WITHSCORES')
            due_ms = first[2] and math.floor(tonumber(first[2]) / EXP) or 0
            nothing = #jobs == 0 and due_ms == 0
            break
        end
        local job = prepare(id, max, duration)
        if job then
            jobs[#jobs + 1] = job
            active = active + 1
        else
            thrown[#thrown + 1] = id
        end
    end
    if #jobs > 0 then
        call('ZADD', P .. 'marker', 0, '0') -- whoever is idle looks too
    else
        count_busy(meta[1])
    end
end

-- Changes nothing, but a server that is full refuses it: before anything is written, and not halfway.
call('SETRANGE', P .. 'id', 0, '')

local codes, finished, retried = {}, false, false
for n = 1, count do
    local i = FIRST + (n - 1) * WIDTH
    if ARGV[i] == 'retry' and not retried then
        retried = true
        promote(P, waiting(P))
    end
    codes[n] = take_leave(i)
    finished = finished or (codes[n] == 0 and (ARGV[i] == 'completed' or ARGV[i] == 'failed'))
end
if wanted > 0 then
    fetch()
end
if finished and (wanted == 0 or nothing) and call('LLEN', P .. 'wait') == 0 and call('LLEN', P .. 'active') == 0 and
    call('ZCARD', P .. 'prioritized') == 0 then
    event(P, 'drained')
end
return { codes, jobs, wait_ms, due_ms, thrown, busy }
