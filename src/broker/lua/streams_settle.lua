-- ARGV: worker, id, attempt, state, charged, delay in ms, started, finished, record or '', keep in ms, keep count, queue or '', stdout or '', stderr or ''.
-- Returns 0 or ESTALE.
--@include _streams.lua
local worker, id, attempt, st, charged = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5] == '1'
local finished = tonumber(ARGV[8])
local j, was = held(id, worker, attempt)
if not j or (j[4] ~= '1' and st ~= 'cancelled') then
  was = was or j
  if was[2] == worker and was[3] == attempt and was[10] == attempt and attempt ~= '0' then
    return 0 -- asked again, because the answer to the first time was lost
  end
  return ESTALE
end
local q = j[7]
if j[5] and not is_final(st) then
  st = 'cancelled' -- who asked for the end does not want a retry
end
if tonumber(j[10]) > 0 then
  local last = get(id, 'ea', 'em', 'aj')
  call('RPUSH', P .. ':hist:' .. id, last[1] .. '|' .. (last[2] or '0') .. '|' .. (last[3] or ''))
  call('LTRIM', P .. ':hist:' .. id, -100, -1)
end
call('HSET', jk(id), 'st', st, 'ea', attempt, 'em', finished, 'aj', ARGV[9], 'pb', (charged or is_final(st)) and 0 or j[9] + 1)
if charged then
  call('HINCRBY', jk(id), 'au', 1)
end
if ARGV[7] ~= '0' then
  call('HSET', jk(id), 'sm', ARGV[7])
end
call('HDEL', jk(id), 'sd', 'ph', 'cn', 'lu', 'sn', 'ln')
for stream = 1, 2 do
  if ARGV[12 + stream] ~= '' then
    call('HSET', P .. ':out:' .. id, attempt .. ':' .. stream, ARGV[12 + stream])
  end
end
drop_entry(id, q, j[6])
leave(id, q, 'active')
if st == 'waiting' then
  make_ready(id, q, tonumber(call('HGET', jk(id), 'pr')))
  event('retry')
elseif st == 'delayed' then
  call('HSET', jk(id), 'due', now + tonumber(ARGV[6]))
  call('ZADD', zk(q, 'due'), now + tonumber(ARGV[6]), id)
else
  make_final(id, q, st, finished)
  if st == 'failed' then
    call('XADD', P .. ':dead:' .. q, 'MAXLEN', '~', 10000, '*', 'id', id, 'attempt', attempt, 'record', ARGV[9])
  end
  if ARGV[12] ~= '' then
    local keep_ms, keep_count = tonumber(ARGV[10]), tonumber(ARGV[11])
    call('HSET', P .. ':keep', q .. '/' .. st, ARGV[10] .. '/' .. ARGV[11])
    expire(q, st, keep_ms, keep_count, 10)
  end
end
return 0
