-- ARGV: worker, id, attempt, phase, containment or ''.
--@include _streams.lua
if not held(ARGV[2], ARGV[1], ARGV[3]) then
  return ESTALE
end
call('HSET', jk(ARGV[2]), 'ph', ARGV[4])
if ARGV[5] ~= '' then
  call('HSET', jk(ARGV[2]), 'cn', ARGV[5])
end
return 0
