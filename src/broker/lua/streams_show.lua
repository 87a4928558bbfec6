-- ARGV: id, 'history' or ''.  Returns {{field, value, …}, {history}}; no such job: {{}, {}}.
--@include _streams.lua
return { call('HGETALL', jk(ARGV[1])), ARGV[2] ~= '' and call('LRANGE', P .. ':hist:' .. ARGV[1], 0, -1) or {} }
