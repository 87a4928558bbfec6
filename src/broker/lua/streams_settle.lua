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
  call('RPUSH', P .. ':hist:' .. id, j[10] .. '|' .. (j[11] or '0') .. '|' .. (j[12] or ''))
  call('LTRIM', P .. ':hist:' .. id, -100, -1)
end
local final = is_final(st)
local fields = { 'st', st, 'ea', attempt, 'em', finished, 'aj', ARGV[9], 'pb', (charged or final) and 0 or j[9] + 1, 'au', j[8] + (charged and 1 or 0) }
if final then
  fields[#fields + 1] = 'fm'
  fields[#fields + 1] = finished
end
if ARGV[7] ~= '0' then
  fields[#fields + 1] = 'sm'
  fields[#fields + 1] = ARGV[7]
end
call('HSET', jk(id), unpack(fields))
call('HDEL', jk(id), 'sd', 'ph', 'cn', 'lu', 'sn', 'ln', 'e')
for stream = 1, 2 do
  if ARGV[12 + stream] ~= '' then
    call('HSET', P .. ':out:' .. id, attempt .. ':' .. stream, ARGV[12 + stream])
  end
end
drop_entry(q, j[6])
if j[15] and j[6] then
  call('HDEL', P .. ':e:' .. q, j[6])
end
leave(id, q, 'active')
if st == 'waiting' then
  make_ready(id, q, tonumber(j[14]))
  event('retry')
elseif st == 'delayed' then
  call('HSET', jk(id), 'due', now + tonumber(ARGV[6]))
  call('ZADD', zk(q, 'due'), now + tonumber(ARGV[6]), id)
else
  call('ZADD', zk(q, st), finished, id)
  free_unique(id, q, j[13])
  if st == 'failed' then
    call('XADD', P .. ':dead:' .. q, 'MAXLEN', '~', 10000, '*', 'id', id, 'attempt', attempt, 'record', ARGV[9])
  end
  -- Retention now and then, not each time: what is kept may be over by that; streams_tick.lua does the same for queues without work.
  if ARGV[12] ~= '' and id % 16 == 0 then
    call('HSET', P .. ':keep', q .. '/' .. st, ARGV[10] .. '/' .. ARGV[11])
    expire(q, st, tonumber(ARGV[10]), tonumber(ARGV[11]), 32)
  end
end
return 0
