-- bullmq_counts.lua - how many jobs a queue has.
--
-- ARGV: 1 base, 2 now.
-- Returns {waiting, delayed, active, completed, failed, 1 when paused, when the oldest that waits was added (ms), waiting-children}.
--@include _bullmq_queue.lua
local oldest = call('LRANGE', P .. 'wait', -1, -1)[1]
return {
    call('LLEN', P .. 'wait') + call('LLEN', P .. 'paused') + call('ZCARD', P .. 'prioritized'),
    call('ZCARD', P .. 'delayed'), call('LLEN', P .. 'active'), call('ZCARD', P .. 'completed'), call('ZCARD', P .. 'failed'),
    call('HEXISTS', P .. 'meta', 'paused'),
    oldest and tonumber(call('HGET', P .. oldest, 'timestamp')) or 0,
    call('ZCARD', P .. 'waiting-children'),
}
