-- ARGV: worker, then for each attempt that has ended: id, attempt, state, charged, delay in ms, started, finished, record or '', keep in ms, keep
-- count, queue or '', stdout or '', stderr or ''.
-- Returns for each 0, EWRITTEN, or why not.
--@include _streams.lua
local WIDTH = 13
local worker = ARGV[1]
local codes, expiring = {}, {}

local function settle(i)
  local id, attempt, st, charged = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3] == '1'
  local delay, started, finished, record, queue = tonumber(ARGV[i + 4]), ARGV[i + 5], ARGV[i + 6], ARGV[i + 7], ARGV[i + 10]
  local j, was = held(id, worker, attempt)
  if not j or (j[4] ~= '1' and st ~= 'cancelled') then
    was = was or j
    if was[2] == worker and was[3] == attempt and was[10] == attempt and attempt ~= '0' then
      return EWRITTEN -- asked again, because the answer to the first time was lost
    end
    return refusal(was, attempt)
  end
  local key, q = jk(id), j[7]
  if j[5] and not is_final(st) then
    st = 'cancelled' -- who asked for the end does not want a retry
  end
  if tonumber(j[10]) > 0 then
    call('RPUSH', P .. ':hist:' .. id, j[10] .. '|' .. (j[11] or '0') .. '|' .. (j[12] or ''))
    call('LTRIM', P .. ':hist:' .. id, -100, -1)
  end
  local final = is_final(st)
  local fields = { 'st', st, 'ea', attempt, 'em', finished, 'aj', record, 'pb', (charged or final) and '0' or j[9] + 1,
    'au', charged and j[8] + 1 or j[8] }
  if final then
    fields[#fields + 1] = 'fm'
    fields[#fields + 1] = finished
  end
  if started ~= '0' then
    fields[#fields + 1] = 'sm'
    fields[#fields + 1] = started
  end
  call('HSET', key, unpack(fields))
  call('HDEL', key, 'sd', 'ph', 'cn', 'lu', 'sn', 'ln', 'e')
  for stream = 1, 2 do
    if ARGV[i + 10 + stream] ~= '' then
      call('HSET', P .. ':out:' .. id, attempt .. ':' .. stream, ARGV[i + 10 + stream])
    end
  end
  if j[6] then
    together('XACK', sk(q), j[6])
    together('XDEL', sk(q), j[6])
  end
  if j[15] and j[6] then
    call('HDEL', P .. ':e:' .. q, j[6])
  end
  together('ZREM', zk(q, 'active'), id)
  together('ZREM', P .. ':leases', id)
  if st == 'waiting' then
    make_ready(id, q, tonumber(j[14]))
    event('retry')
  elseif st == 'delayed' then
    call('HSET', key, 'due', now + delay)
    call('ZADD', zk(q, 'due'), now + delay, id)
  else
    together('ZADD', zk(q, st), finished, id)
    free_unique(id, q, j[13])
    if st == 'failed' then
      call('XADD', P .. ':dead:' .. q, 'MAXLEN', '~', 10000, '*', 'id', id, 'attempt', attempt, 'record', record)
    end
    -- Retention now and then, not each time: what is kept may be over by that; streams_tick.lua does the same for queues without work.
    if queue ~= '' and id % 16 == 0 then
      call('HSET', P .. ':keep', q .. '/' .. st, ARGV[i + 8] .. '/' .. ARGV[i + 9])
      expiring[#expiring + 1] = { q, st, tonumber(ARGV[i + 8]), tonumber(ARGV[i + 9]) }
    end
  end
  return 0
end

carry_out(function()
  for i = 2, #ARGV, WIDTH do
    codes[#codes + 1] = settle(i)
  end
end)
for _, e in ipairs(expiring) do
  expire(e[1], e[2], e[3], e[4], 32)
end
return codes
