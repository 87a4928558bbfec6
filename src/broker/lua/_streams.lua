-- _streams.lua - what the scripts of the broker streams:// share.  KEYS[1] is the prefix, in braces: all keys lie in one slot.
--
--   P:id                 counter of job ids              P:queues, P:paused    sets of names
--   P:job:<id>           hash, the job (below)           P:hist:<id>           list of ended attempts before the last one
--   P:out:<id>           hash, inline output             P:u:<queue>           hash, unique key -> id
--   P:q:<queue>          stream: where producers add; read through the group "mandor", first in first out
--   P:z:<queue>:ready    waiting jobs that have no entry in the stream (priorities, retries, what was given back), score priority·2^32 + id
--   P:z:<queue>:waiting, :active (score id)   :due (retries), :later (a user's delay) (score ms)   :completed, :failed, :cancelled (score ms)
--   P:ids:<queue>        all jobs                        P:leases              active jobs, score: the lease's end by this server's clock
--   P:e:<queue>          entries of other producers that are being run -> id
--   P:dead:<queue>       stream: jobs that have failed for good, with their record
--   P:workers, P:w:<name>, P:alive                       P:events              stream that wakes workers
--
-- A job: q queue, st state, pr priority, at attempt, sd started, w worker, lu lease's end, cr cancel requested, am attempts, au used, pb put
-- backs, ea ended attempt, aj its record, em its end, ct created, sm started, fm finished, due, ph phase, cn containment, uq unique key, e its
-- entry in the stream, fo added by another producer, spec, ln and sn nonces of the lease and the start (asked again after a lost answer).
local P = KEYS[1]
local GROUP = 'mandor'
local BAND = 4294967296
local call = redis.call
local clock = call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local ESTALE, ENOENT, EBUSY = -116, -2, -16
local EWRITTEN, EUNDONE = 1, -117 -- it is so already, this was asked before; what came before it is lost

local function jk(id) return P .. ':job:' .. id end
local function zk(q, set) return P .. ':z:' .. q .. ':' .. set end
local function sk(q) return P .. ':q:' .. q end
local function get(id, ...) return call('HMGET', jk(id), ...) end
local function event(kind) call('XADD', P .. ':events', 'MAXLEN', '~', 1000, '*', 'k', kind) end
local function is_final(st) return st == 'completed' or st == 'failed' or st == 'cancelled' end

-- What many jobs of one call need is done by one command for all of them, at the end of carry_out(): a command costs more than what it does.
local shared, shared_keys = {}, {}
local function together(command, key, ...)
  local keys = shared[command] or {}
  local list = keys[key]
  shared[command] = keys
  if not list then
    list = { command, key }
    keys[key] = list
    shared_keys[#shared_keys + 1] = list
  end
  for n = 1, select('#', ...) do
    list[#list + 1] = (select(n, ...))
  end
end

-- Those before one that cannot be written are written all the same.
local function carry_out(work)
  local ok, why = pcall(work)
  for _, list in ipairs(shared_keys) do
    for from = 3, #list, 4000 do
      local to = math.min(from + 3999, #list)
      if list[1] == 'XACK' then
        call('XACK', list[2], GROUP, unpack(list, from, to))
      else
        call(list[1], list[2], unpack(list, from, to))
      end
    end
  end
  if not ok then
    error(why, 0)
  end
end

-- The entry has done its work.  The job's field `e` is the caller's to delete.
local function drop_entry(q, e)
  if e then
    call('XACK', sk(q), GROUP, e)
    call('XDEL', sk(q), e)
  end
end

local function forget_entry(id, q, e)
  if e then
    drop_entry(q, e)
    call('HDEL', jk(id), 'e')
    call('HDEL', P .. ':e:' .. q, e)
  end
end

-- Out of the sets of its state.
local function leave(id, q, st)
  if st == 'waiting' then
    call('ZREM', zk(q, 'waiting'), id)
    call('ZREM', zk(q, 'ready'), id)
  elseif st == 'delayed' then
    call('ZREM', zk(q, 'due'), id)
    call('ZREM', zk(q, 'later'), id)
  elseif st == 'active' then
    call('ZREM', zk(q, 'active'), id)
    call('ZREM', P .. ':leases', id)
  elseif st then
    call('ZREM', zk(q, st), id)
  end
end

local function make_ready(id, q, pr)
  call('HSET', jk(id), 'st', 'waiting')
  call('ZADD', zk(q, 'waiting'), id, id)
  call('ZADD', zk(q, 'ready'), pr * BAND + id, id)
end

local function free_unique(id, q, uq)
  if uq and call('HGET', P .. ':u:' .. q, uq) == tostring(id) then
    call('HDEL', P .. ':u:' .. q, uq)
  end
end

local function make_final(id, q, st, ms)
  call('HSET', jk(id), 'st', st, 'fm', ms)
  call('ZADD', zk(q, st), ms, id)
  free_unique(id, q, call('HGET', jk(id), 'uq'))
end

local function delete(id)
  local j = get(id, 'q', 'st', 'uq', 'e')
  if not j[1] then
    return
  end
  forget_entry(id, j[1], j[4])
  leave(id, j[1], j[2])
  free_unique(id, j[1], j[3])
  call('ZREM', P .. ':ids:' .. j[1], id)
  call('DEL', jk(id), P .. ':hist:' .. id, P .. ':out:' .. id)
end

-- Due delays become ready; how many.
local function promote(q, max)
  local moved = 0
  for _, set in ipairs({ 'due', 'later' }) do
    for _, id in ipairs(call('ZRANGEBYSCORE', zk(q, set), '-inf', now, 'LIMIT', 0, max)) do
      call('ZREM', zk(q, set), id)
      local pr = call('HGET', jk(id), 'pr')
      if pr then
        make_ready(id, q, tonumber(pr))
        call('HDEL', jk(id), 'due')
        moved = moved + 1
      end
    end
  end
  return moved
end

-- The fence: is the job active, with this worker and this attempt?  Some of its fields, or nil and the same.
local function held(id, worker, attempt)
  local j = get(id, 'st', 'w', 'at', 'sd', 'cr', 'e', 'q', 'au', 'pb', 'ea', 'em', 'aj', 'uq', 'pr', 'fo')
  if j[1] == 'active' and j[2] == worker and j[3] == attempt then
    return j
  end
  return nil, j
end

-- Why an attempt is not held.  One that the server has given out and knows nothing of: it was restarted, or replaced by a replica, without its
-- last writes.
local function refusal(j, attempt)
  return not j[1] and ENOENT or (tonumber(j[3]) or 0) < tonumber(attempt) and EUNDONE or ESTALE
end

-- Leased, and not run: as if nothing had happened.
local function go_back(id, q, e, pr, cancelled)
  call('HDEL', jk(id), 'lu', 'ph', 'cn', 'ln', 'sd')
  forget_entry(id, q, e)
  leave(id, q, 'active')
  if cancelled then
    make_final(id, q, 'cancelled', now)
  else
    make_ready(id, q, tonumber(pr))
  end
end

-- The lease holds from now on; the entry's idle time in the group begins anew, its owner stays.
local function extend(id, j, worker, lease_ms)
  call('HSET', jk(id), 'lu', now + lease_ms)
  call('ZADD', P .. ':leases', now + lease_ms, id)
  if j[6] then
    redis.pcall('XCLAIM', sk(j[7]), GROUP, worker, 0, j[6], 'JUSTID')
  end
end

local function workers()
  local list = {}
  for _, name in ipairs(call('SMEMBERS', P .. ':workers')) do
    local w = call('HMGET', P .. ':w:' .. name, 'host', 'boot', 'lock', 'base', 'queues', 'since', 'pid')
    local until_ms = call('ZSCORE', P .. ':alive', name)
    list[#list + 1] = { name, w[1] or '', w[2] or '', w[3] or '', w[4] or '', w[5] or '[]', w[6] or '0', w[7] or '0',
      (until_ms and tonumber(until_ms) > now) and 1 or 0, math.max(now - tonumber(until_ms or now), 0) }
  end
  return list
end

local function expire(q, st, keep_ms, keep_count, max)
  local gone = 0
  if keep_ms > 0 then
    for _, id in ipairs(call('ZRANGEBYSCORE', zk(q, st), '-inf', now - keep_ms, 'LIMIT', 0, max)) do
      delete(id)
      gone = gone + 1
    end
  end
  if keep_count > 0 then
    local excess = math.min(call('ZCARD', zk(q, st)) - keep_count, max)
    if excess > 0 then
      for _, id in ipairs(call('ZRANGE', zk(q, st), 0, excess - 1)) do
        delete(id)
        gone = gone + 1
      end
    end
  end
  return gone
end
