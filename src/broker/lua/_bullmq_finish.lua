-- _bullmq_finish.lua - how a job leaves its queue for good, and what becomes of it then.

-- What many jobs of one call need is done once for all of them, by carry_out().
local doomed = {}                              -- keys
local kept = { completed = {}, failed = {} }   -- score, id, …
local kept_base

local function delete(B, id)
    local key, n = B .. id, #doomed
    doomed[n + 1], doomed[n + 2], doomed[n + 3] = key, key .. ':logs', key .. ':dependencies'
    doomed[n + 4], doomed[n + 5], doomed[n + 6] = key .. ':processed', key .. ':failed', key .. ':unsuccessful'
end

-- The command, with the elements of the list as its last arguments; many of them in several calls.
local function in_parts(list, command, key)
    for from = 1, #list, 5000 do
        local to = math.min(from + 4999, #list)
        if key then
            call(command, key, unpack(list, from, to))
        else
            call(command, unpack(list, from, to))
        end
    end
end

local function list_kept()
    for state, list in pairs(kept) do
        if #list > 0 then
            in_parts(list, 'ZADD', kept_base .. state)
            kept[state] = {}
        end
    end
end

local function carry_out()
    list_kept()
    in_parts(doomed, 'DEL')
    doomed = {}
end

-- Made when the first job comes that needs one of these.
local rare
local function rarely()
    if rare then
        return rare
    end
--@include _bullmq_enter.lua
--@include _bullmq_rare.lua
    rare = {
        push_wait = push_wait, push_prioritized = push_prioritized, push_delayed = push_delayed,
        parent_of = parent_of, tell_parent_completed = tell_parent_completed, tell_parent_failed = tell_parent_failed,
        detach = detach, end_deduplication = end_deduplication, count_metrics = count_metrics,
    }
    return rare
end

-- keep = {count = -1: all, 0: none, n: the newest n; age = seconds, 0: any; limit = removals at most}
local function retain(B, id, state, keep, fields, parent)
    if keep.count == 0 then
        if parent then
            rarely().detach(B, id)
        end
        delete(B, id)
        return
    end
    local set = B .. state
    call('HMSET', B .. id, 'finishedOn', ARGV[2], unpack(fields))
    local list = kept[state]
    kept_base, list[#list + 1], list[#list + 2] = B, ARGV[2], id
    if keep.count < 0 and keep.age == 0 then
        return
    end
    list_kept()
    local old = {}
    if keep.age > 0 then
        old = call('ZREVRANGEBYSCORE', set, now - keep.age * 1000, 0, 'LIMIT', 0, keep.limit)
    end
    for pass = 1, 2 do
        for _, job in ipairs(old) do
            rarely().detach(B, job)
            delete(B, job)
        end
        in_parts(old, 'ZREM', set)
        old = pass == 1 and keep.count > 0 and call('ZREVRANGE', set, keep.count, -1) or {}
    end
end

local trimmed = {} -- the events of these have been, in this call
local FINISH_FIELDS = { 'ats', 'atm', 'parentKey', 'parent', 'deid', 'priority' }

-- The job, in no list any more, is completed or failed.  job: its FINISH_FIELDS; value: JSON or the reason's text; record: text or "";
-- how: keep, attempts, points.  carry_out() has to follow.
local function finish(B, id, state, job, value, record, how)
    local key = B .. id
    if job[5] then
        rarely().end_deduplication(B, id, job[5])
    end
    local parent = job[3] and rarely().parent_of(job[4], job[3])
    if parent and state == 'completed' then
        rare.tell_parent_completed(parent, key, value)
    elseif parent then
        rare.tell_parent_failed(parent, key, value)
    end
    local made = (tonumber(job[2]) or 0) + 1
    local fields = { 'atm', made, state == 'completed' and 'returnvalue' or 'failedReason', value }
    if record ~= '' then
        fields[5], fields[6] = 'mandor', record
    end
    if state == 'failed' then
        call('HDEL', key, 'defa')
    end
    retain(B, id, state, how.keep, fields, parent)
    local tell = trimmed[B] and event or event_trim
    trimmed[B] = true
    if state == 'completed' then
        tell(B, 'completed', 'jobId', id, 'returnvalue', value, 'prev', 'active')
    else
        tell(B, 'failed', 'jobId', id, 'failedReason', value, 'prev', 'active')
        if made >= how.attempts then
            event(B, 'retries-exhausted', 'jobId', id, 'attemptsMade', made)
        end
    end
    if how.points > 0 then
        rarely().count_metrics(B, state, how.points)
    end
end
