-- ARGV: worker, lease in ms, host, boot id, lock, base, queues, since, pid.
--@include _streams.lua
call('HSET', P .. ':w:' .. ARGV[1], 'host', ARGV[3], 'boot', ARGV[4], 'lock', ARGV[5], 'base', ARGV[6], 'queues', ARGV[7], 'since', ARGV[8],
  'pid', ARGV[9])
call('SADD', P .. ':workers', ARGV[1])
call('ZADD', P .. ':alive', now + tonumber(ARGV[2]), ARGV[1])
for _, q in ipairs(cjson.decode(ARGV[7])) do
  call('SADD', P .. ':queues', q)
end
return 0
