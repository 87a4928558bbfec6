-- bullmq_find.lua - jobs as people ask for them.
--
-- ARGV: 1 base, 2 now, 3 one | page | ids, then
--       one: 4 id                    page: 4 jobs at most, 5 id of the last one of the page before ("" = from the first), 6… states
--       ids: 4 state, 5 at most      (states: active wait paused prioritized waiting-children delayed completed failed)
-- Returns {{id, state, score or "", field, value, …}…}; ids: {id…}.
--@include _bullmq_queue.lua
local LISTS = { active = true, wait = true, paused = true }
local ORDER = { 'completed', 'failed', 'delayed', 'prioritized', 'waiting-children', 'active', 'wait', 'paused' }

-- LPOS is there from 6.0.6 on.
local function position(key, id)
    local at = redis.pcall('LPOS', key, id)
    if type(at) ~= 'table' then
        return at
    end
    for i, other in ipairs(call('LRANGE', key, 0, -1)) do
        if other == id then
            return i - 1
        end
    end
    return false
end

local function rank(state, id)
    if LISTS[state] then
        return position(P .. state, id)
    end
    return call('ZREVRANK', P .. state, id)
end

local function state_of(id)
    for _, state in ipairs(ORDER) do
        if rank(state, id) then
            return state
        end
    end
    return 'unknown'
end

local function range(state, from, count)
    if LISTS[state] then
        return call('LRANGE', P .. state, from, from + count - 1)
    end
    return call('ZREVRANGE', P .. state, from, from + count - 1)
end

local function job(id, state)
    local found = { id, state, '' }
    if not LISTS[state] and state ~= 'unknown' then
        found[3] = call('ZSCORE', P .. state, id) or ''
    end
    for _, part in ipairs(call('HGETALL', P .. id)) do
        found[#found + 1] = part
    end
    return found
end

if ARGV[3] == 'one' then
    return call('EXISTS', P .. ARGV[4]) == 1 and { job(ARGV[4], state_of(ARGV[4])) } or {}
elseif ARGV[3] == 'ids' then
    return range(ARGV[4], 0, tonumber(ARGV[5]))
end

local left, after, jobs = tonumber(ARGV[4]), ARGV[5], {}
local begun = after == '' or state_of(after) == 'unknown'
for i = 6, #ARGV do
    local state, from = ARGV[i], 0
    if not begun then
        local at = rank(state, after)
        if at then
            begun, from = true, at + 1
        end
    end
    if begun and left > 0 then
        for _, id in ipairs(range(state, from, left)) do
            jobs[#jobs + 1] = job(id, state)
            left = left - 1
        end
    end
end
return jobs
