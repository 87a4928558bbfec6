-- ARGV: id, attempt or 0, stream (1, 2).
-- Returns {which, attempt, active, worker, bytes or false, record or false}; {ENOENT} no such job.
--@include _streams.lua
local id, asked = ARGV[1], tonumber(ARGV[2])
local j = get(id, 'st', 'at', 'ea', 'sd', 'w', 'aj')
if not j[1] then
  return { ENOENT }
end
local attempt, ended, running = tonumber(j[2]), tonumber(j[3]), j[1] == 'active' and j[4] == '1'
local which = asked ~= 0 and asked or running and attempt or ended
if running and which == attempt then
  return { which, attempt, 1, j[5] or '', false, false }
end
local record = which == ended and ended > 0 and j[6] or false
if not record then
  for _, h in ipairs(call('LRANGE', P .. ':hist:' .. id, 0, -1)) do
    local a, text = string.match(h, '^(%d+)|%d+|(.*)$')
    if tonumber(a) == which then
      record = text
    end
  end
end
return { which, attempt, 0, '', call('HGET', P .. ':out:' .. id, which .. ':' .. ARGV[3]), record }
