/* scripts.c - contract in scripts.h.  Each ends in something that may be done twice: a call is made again over a new connection. */
#include "memory/scripts.h"

#define STALE                                                                            \
    "local function stale(last)\n"                                                       \
    "return redis.error_reply('STALE attempt '..last..' of this job has begun since')\n" \
    "end\n"

/* Unread entries of the group (those it has not had and those it has not confirmed), or all there are.  Redis 7 knows the lag; before, and
 * where it was lost by XDEL, it is counted up to the bound. */
#define PENDING                                                                               \
    "local function pending(stream, group, bound)\n"                                          \
    "if group == '' then return redis.call('XLEN', stream) end\n"                             \
    "if redis.call('EXISTS', stream) == 0 then return 0 end\n"                                \
    "for _, raw in ipairs(redis.call('XINFO', 'GROUPS', stream)) do\n"                        \
    "local g = {}\n"                                                                          \
    "for i = 1, #raw, 2 do g[raw[i]] = raw[i + 1] end\n"                                      \
    "if g['name'] == group then\n"                                                            \
    "local lag = g['lag']\n"                                                                  \
    "if not lag then\n"                                                                       \
    "lag = #redis.call('XRANGE', stream, '('..g['last-delivered-id'], '+', 'COUNT', bound)\n" \
    "end\n"                                                                                   \
    "return lag + g['pending']\n"                                                             \
    "end\n"                                                                                   \
    "end\n"                                                                                   \
    "return redis.call('XLEN', stream)\n"                                                     \
    "end\n"

struct redis_script script_begin = {
    .name = "sink_begin",
    .text = STALE "local last = redis.call('GET', KEYS[1])\n"
                  "if last then\n"
                  "local a = tonumber(string.match(last, '^(%d+):'))\n"
                  "if a > tonumber(ARGV[1]) then return stale(a) end\n"
                  "if a == tonumber(ARGV[1]) then return 1 end\n"
                  "end\n"
                  "redis.call('SET', KEYS[1], ARGV[1]..':0', 'EX', " FENCE_SECONDS ")\n"
                  "return 1\n",
};

struct redis_script script_add = {
    .name = "sink_add",
    .text = STALE PENDING
    "local attempt, first = tonumber(ARGV[1]), tonumber(ARGV[2])\n"
    "local have = first\n"
    "local last = redis.call('GET', KEYS[2])\n"
    "if last then\n"
    "local a, s = string.match(last, '^(%d+):(%d+)$')\n"
    "if tonumber(a) > attempt then return stale(a) end\n"
    "if tonumber(a) == attempt then have = tonumber(s) end\n"
    "end\n"
    "if have < first then return redis.error_reply('GAP entry '..have..' is missing') end\n"
    "local n, room = (#ARGV - 6) / 4, nil\n"
    "local bound = tonumber(ARGV[6])\n"
    "if bound > 0 then room = bound - pending(KEYS[1], ARGV[5], bound) end\n"
    "local seq = first\n"
    "for i = 7, #ARGV, 4 do\n"
    "if seq >= have then\n"
    "if room and room <= 0 then break end\n"
    "local args = {'XADD', KEYS[1]}\n"
    "if ARGV[4] ~= '0' then args = {'XADD', KEYS[1], 'MAXLEN', '~', ARGV[4]} end\n"
    "local k = #args\n"
    "args[k+1] = '*' args[k+2] = 'job' args[k+3] = ARGV[3] args[k+4] = 'attempt' args[k+5] = "
    "ARGV[1]\n"
    "args[k+6] = 'seq' args[k+7] = seq args[k+8] = 'off' args[k+9] = ARGV[i]\n"
    "args[k+10] = 'data' args[k+11] = ARGV[i+3] k = k + 11\n"
    "if ARGV[i+1] ~= '0' then args[k+1] = 'head' args[k+2] = ARGV[i+1] k = k + 2 end\n"
    "if ARGV[i+2] ~= '' then args[k+1] = 'flags' args[k+2] = ARGV[i+2] end\n"
    "redis.call(unpack(args))\n"
    "have = seq + 1\n"
    "if room then room = room - 1 end\n"
    "end\n"
    "seq = seq + 1\n"
    "end\n"
    "redis.call('SET', KEYS[2], attempt..':'..have, 'EX', " FENCE_SECONDS ")\n"
    "return have\n",
};

struct redis_script script_last = {
    .name = "sink_last",
    .text = STALE
    "local attempt, seq = tonumber(ARGV[1]), tonumber(ARGV[2])\n"
    "local last = redis.call('GET', KEYS[2])\n"
    "if last then\n"
    "local a, s = string.match(last, '^(%d+):(%d+)$')\n"
    "if tonumber(a) > attempt then return stale(a) end\n"
    "if tonumber(a) == attempt and tonumber(s) == seq + 1 then return seq + 1 end\n"
    "if tonumber(a) == attempt and tonumber(s) ~= seq then\n"
    "return redis.error_reply('GAP entry '..s..' is missing')\n"
    "end\n"
    "end\n"
    "local args = {'XADD', KEYS[1], '*', 'job', ARGV[3], 'attempt', ARGV[1], 'seq', ARGV[2]}\n"
    "for i = 4, #ARGV do args[#args + 1] = ARGV[i] end\n"
    "redis.call(unpack(args))\n"
    "redis.call('SET', KEYS[2], attempt..':'..(seq + 1), 'EX', " FENCE_SECONDS ")\n"
    "return seq + 1\n",
};

struct redis_script script_pending = {
    .name = "sink_pending",
    .text = PENDING "return pending(KEYS[1], ARGV[1], ARGV[2])\n",
};

struct redis_script script_publish = {
    .name = "sink_publish",
    .text = STALE "local attempt = tonumber(ARGV[1])\n"
                  "local last = redis.call('GET', KEYS[3])\n"
                  "if last then\n"
                  "local a, done = string.match(last, '^(%d+):(%d+)$')\n"
                  "if tonumber(a) > attempt then return stale(a) end\n"
                  "if tonumber(a) == attempt and done == '1' then return 1 end\n"
                  "end\n"
                  "if redis.call('STRLEN', KEYS[1]) ~= tonumber(ARGV[2]) then\n"
                  "return redis.error_reply('GONE the staged bytes are not all there any more')\n"
                  "end\n"
                  "if ARGV[3] ~= '' then\n"
                  "redis.call('HSET', KEYS[2], ARGV[3], redis.call('GET', KEYS[1]) or '')\n"
                  "redis.call('DEL', KEYS[1])\n"
                  "elseif ARGV[2] == '0' then\n"
                  "redis.call('SET', KEYS[2], '')\n"
                  "else\n"
                  "redis.call('PERSIST', KEYS[1])\n"
                  "redis.call('RENAME', KEYS[1], KEYS[2])\n"
                  "end\n"
                  "redis.call('SET', KEYS[3], attempt..':1', 'EX', " FENCE_SECONDS ")\n"
                  "return 1\n",
};
