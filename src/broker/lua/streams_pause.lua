-- ARGV: queue, 1 or 0.
--@include _streams.lua
call('SADD', P .. ':queues', ARGV[1])
call(ARGV[2] == '1' and 'SADD' or 'SREM', P .. ':paused', ARGV[1])
event('pause')
return 0
