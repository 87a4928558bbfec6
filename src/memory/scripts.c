/* scripts.c - contract in scripts.h.  Each ends in something that may be done twice: a call is made again over a new connection. */
#include "memory/scripts.h"

/* attempt and nonce are ours; owned(fence) gives the entry that is next, or the error that somebody else has the output now. */
#define FENCE                                                                              \
    "local attempt, nonce = string.match(ARGV[1], '^(%d+)%.(%x+)$')\n"                     \
    "local function owned(key)\n"                                                          \
    "local a, n, s = string.match(redis.call('GET', key) or '', '^(%d+)%.(%x+):(%d+)$')\n" \
    "if not a or tonumber(a) < tonumber(attempt) then return nil end\n"                    \
    "if a ~= attempt or n ~= nonce then\n"                                                 \
    "return nil, redis.error_reply('STALE attempt '..a..' of this job has begun since')\n" \
    "end\n"                                                                                \
    "return tonumber(s)\n"                                                                 \
    "end\n"                                                                                \
    "local function set(key, s)\n"                                                         \
    "redis.call('SET', key, ARGV[1]..':'..s, 'EX', " FENCE_SECONDS ")\n"                   \
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
    .text = FENCE "local a, n = string.match(redis.call('GET', KEYS[1]) or '', '^(%d+)%.(%x+):')\n"
                  "if a and tonumber(a) > tonumber(attempt) then\n"
                  "return redis.error_reply('STALE attempt '..a..' of this job has begun since')\n"
                  "end\n"
                  "if a ~= attempt or n ~= nonce then set(KEYS[1], 0) end\n"
                  "return 1\n",
};

struct redis_script script_add = {
    .name = "sink_add",
    .text = FENCE PENDING
    "local have, err = owned(KEYS[2])\n"
    "if err then return err end\n"
    "local seq = tonumber(ARGV[2])\n"
    "have = have or 0\n"
    "if have < seq then return redis.error_reply('GAP entry '..have..' is missing') end\n"
    "local bound = tonumber(ARGV[6])\n"
    "local room = bound - pending(KEYS[1], ARGV[5], bound)\n"
    "local args = {'XADD', KEYS[1], '*'}\n"
    "if ARGV[4] ~= '0' then args = {'XADD', KEYS[1], 'MAXLEN', '~', ARGV[4], '*'} end\n"
    "local k = #args\n"
    "args[k+1] = 'job' args[k+2] = ARGV[3] args[k+3] = 'attempt' args[k+4] = attempt\n"
    "args[k+5] = 'seq' args[k+7] = 'off' args[k+9] = 'data'\n"
    "for i = 7, #ARGV, 4 do\n"
    "if seq >= have then\n"
    "if room <= 0 then break end\n"
    "args[k+6] = seq args[k+8] = ARGV[i] args[k+10] = ARGV[i+3]\n"
    "for j = k + 11, k + 14 do args[j] = nil end\n"
    "local m = k + 10\n"
    "if ARGV[i+1] ~= '0' then args[m+1] = 'head' args[m+2] = ARGV[i+1] m = m + 2 end\n"
    "if ARGV[i+2] ~= '' then args[m+1] = 'flags' args[m+2] = ARGV[i+2] end\n"
    "redis.call(unpack(args))\n"
    "have = seq + 1\n"
    "room = room - 1\n"
    "end\n"
    "seq = seq + 1\n"
    "end\n"
    "set(KEYS[2], have)\n"
    "return have\n",
};

struct redis_script script_last = {
    .name = "sink_last",
    .text = FENCE
    "local have, err = owned(KEYS[2])\n"
    "if err then return err end\n"
    "local seq = tonumber(ARGV[2])\n"
    "if have == seq + 1 then return have end\n"
    "have = have or 0\n"
    "if have ~= seq then return redis.error_reply('GAP entry '..have..' is missing') end\n"
    "local args = {'XADD', KEYS[1], '*', 'job', ARGV[3], 'attempt', attempt, 'seq', ARGV[2]}\n"
    "for i = 4, #ARGV do args[#args + 1] = ARGV[i] end\n"
    "redis.call(unpack(args))\n"
    "set(KEYS[2], seq + 1)\n"
    "return seq + 1\n",
};

/* SETRANGE alone would fill with zeros what somebody has deleted, or a failover has lost. */
struct redis_script script_stage = {
    .name = "sink_stage",
    .text = "if redis.call('STRLEN', KEYS[1]) < tonumber(ARGV[1]) then\n"
            "return redis.error_reply('GONE the staged bytes are not all there any more')\n"
            "end\n"
            "redis.call('SETRANGE', KEYS[1], ARGV[1], ARGV[2])\n"
            "return redis.call('EXPIRE', KEYS[1], " STAGE_SECONDS ")\n",
};

struct redis_script script_publish = {
    .name = "sink_publish",
    .text = FENCE "local done, err = owned(KEYS[3])\n"
                  "if err then return err end\n"
                  "if done == 1 then return 1 end\n"
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
                  "set(KEYS[3], 1)\n"
                  "return 1\n",
};
