-- ARGV: what (cancel, retry, remove), id or '', queue or '', state or '', refused so far, limit.
-- One job: {0, worker} or {-errno, state}.  All of a state: {changed, looked at, refused so far}.
--@include _streams.lua
local what = ARGV[1]

local function cancel(id, q, j)
  if is_final(j[2]) then
    return EBUSY
  elseif j[2] == 'active' then
    call('HSET', jk(id), 'cr', 1)
  else
    forget_entry(id, q, j[4])
    leave(id, q, j[2])
    call('HDEL', jk(id), 'due')
    make_final(id, q, 'cancelled', now)
  end
  return 0
end

local function retry(id, q, j)
  if not is_final(j[2]) then
    return EBUSY
  elseif j[5] and call('HSETNX', P .. ':u:' .. q, j[5], id) == 0 then
    return -1
  end
  leave(id, q, j[2])
  call('HSET', jk(id), 'au', 0, 'pb', 0)
  call('HDEL', jk(id), 'cr', 'fm', 'due')
  make_ready(id, q, tonumber(j[6]))
  return 0
end

local function change(id)
  local j = get(id, 'q', 'st', 'w', 'e', 'uq', 'pr')
  if not j[1] then
    return ENOENT, ''
  end
  local r = EBUSY
  if what == 'cancel' then
    r = cancel(id, j[1], j)
  elseif what == 'retry' then
    r = retry(id, j[1], j)
  elseif j[2] ~= 'active' then
    delete(id)
    r = 0
  end
  return r, r == 0 and (j[2] == 'active' and j[3] or '') or j[2]
end

if ARGV[2] ~= '' then
  local r, text = change(ARGV[2])
  if r == 0 and what ~= 'remove' then
    event(what)
  end
  return { r, text }
end

local queues = ARGV[3] ~= '' and { ARGV[3] } or call('SMEMBERS', P .. ':queues')
local sets = ARGV[4] == '' and { 'waiting', 'due', 'later', 'active', 'completed', 'failed', 'cancelled' }
  or ARGV[4] == 'delayed' and { 'due', 'later' } or { ARGV[4] }
local count, seen, limit = 0, 0, tonumber(ARGV[6])
-- A changed job has left its set, one that is refused stays: `refused` of those that were looked at before are still in front.
local refused = tonumber(ARGV[5])
local skip = refused
for _, q in ipairs(queues) do
  for _, set in ipairs(sets) do
    local size = call('ZCARD', zk(q, set))
    if skip >= size then
      skip = skip - size
    elseif seen < limit then
      for _, id in ipairs(call('ZRANGE', zk(q, set), skip, skip + limit - seen - 1)) do
        local r = change(id)
        seen = seen + 1
        if r == 0 then
          count = count + 1
        end
        if r ~= 0 or (what == 'cancel' and set == 'active') then
          refused = refused + 1
        end
      end
      skip = 0
    end
  end
end
if count > 0 and what ~= 'remove' then
  event(what)
end
return { count, seen, refused }
