/* redis.h - a Redis (or Valkey) server, kept within reach.  For brokers and sinks.  Loop thread only; nothing here blocks.
 *
 *     redis_new ─▶ resolve ─▶ connect ─▶ AUTH, CLIENT SETNAME, SELECT, ROLE ─▶ up ──┐
 *                     ▲                                                             │ connection lost, half-dead,
 *                     └────────────── backoff with jitter ◀─────────────────────────┘ READONLY, LOADING, MOVED
 *
 * A call may be made at any time, connected or not: it waits for the connection, and it is always answered exactly once, at the latest
 * when its time is over.  Calls are written in their order and many share one packet (pipelining).  A call that is not answered in
 * time means that the connection is half-dead: it is given up, and so is everything that was written to it.
 *
 * What was written and not answered may or may not have been carried out.  With REDIS_AGAIN such a call is made again over the next
 * connection, within its time: for commands and scripts that may be carried out twice.
 *
 * One struct redis talks about keys of ONE slot of a cluster: it follows MOVED by going there with all of its calls, and ASK for the
 * one call.  Commands that block at the server (XREAD BLOCK, BLPOP, SUBSCRIBE) hold up everything behind them: open a second
 * struct redis for them. */
#ifndef REDIS_REDIS_H
#define REDIS_REDIS_H

#include <hiredis/hiredis.h>
#include <uv.h>

#include "base/err.h"
#include "base/macro.h"
#include "redis/url.h"

struct redis;

struct redis_options {
    const char *client_name; /* CLIENT SETNAME (spaces become '-'); NULL = none */
    int64_t connect_ms;      /* one connection attempt, handshake and all; 0 = 5 s */
    bool allow_replica;      /* do not ask for ROLE: a replica will do (reading) */
    bool
        once; /* report the first failure to connect to all calls instead of trying on: command line */
    void (*on_up)(
        void *
            arg); /* a connection is ready: subscribe again, look for what was missed.  NULL allowed */
    void (*on_down)(void *arg, const struct mandor_err *err); /* it is gone.  NULL allowed */
    void (*on_message)(void *arg, const char *channel, const char *payload,
                       size_t len); /* redis_subscribe() */
    void *arg;
};

/* Open; the connection is made in the background.  url is copied.
 * Returns 0, -ENOTSUP (TLS where hiredis has none), -EINVAL or -ENOMEM with *err. */
MUST_CHECK int redis_new(uv_loop_t *loop, const struct redis_url *url,
                         const struct redis_options *options, struct redis **ret,
                         struct mandor_err *err);
/* Calls without an answer are answered with -ECANCELED before this returns; on_closed (NULL allowed) runs later, then it is freed. */
void redis_close(struct redis *redis, void (*on_closed)(void *arg), void *arg);

/* How a call went: 0 and the server's reply (borrowed for the call), or -errno, reply NULL, and *err says why.
 * An error reply of the server (-ERR …) arrives as a failure too: redis_error_code() in `result`, its text in err->msg. */
typedef void redis_reply_fn(void *arg, int result, const redisReply *reply,
                            const struct mandor_err *err);

#define REDIS_AGAIN 1 /* may be carried out twice: make it again after a lost connection */
#define REDIS_FIRST 2 /* before everything that is not written yet */

/* argv: copied.  lens NULL: NUL-terminated text.  timeout_ms: from now, waiting for a connection included.
 * fn is never called from inside of this.  Out of memory: fn hears of it. */
void redis_call(struct redis *redis, int flags, int64_t timeout_ms, size_t argc,
                const char *const *argv, const size_t *lens, redis_reply_fn *fn, void *arg);
/* The same with "%s %d %lld %b" as in redisCommand(3): words are separated by spaces, an argument never splits. */
void redis_callf(struct redis *redis, int flags, int64_t timeout_ms, redis_reply_fn *fn, void *arg,
                 const char *format, ...);

/* A Lua script, embedded at build time (redis/scripts.h lists them).  sha is filled at first use. */
struct redis_script {
    const char *name, *text;
    char sha[41];
};
/* EVALSHA with keys first, then args; the text is sent when the server does not know it (NOSCRIPT).  As redis_call(). */
void redis_eval(struct redis *redis, struct redis_script *script, int flags, int64_t timeout_ms,
                size_t key_count, size_t argc, const char *const *argv, const size_t *lens,
                redis_reply_fn *fn, void *arg);

/* SUBSCRIBE now and after every reconnect; messages come to on_message.  This connection then takes no calls.
 * 0 or -ENOMEM. */
MUST_CHECK int redis_subscribe(struct redis *redis, const char *channel);

bool redis_is_up(const struct redis *redis);
/* The server's redis_version as 7 * 10000 + 0 * 100 + 15; 0 before the first connection. */
int redis_version(const struct redis *redis);
/* maxmemory-policy when the server may evict keys under its memory limit ("allkeys-lru", …), else NULL: queues need "noeviction".
 * Known from the first connection on; NULL where the server does not tell. */
const char *redis_evicts(const struct redis *redis);
const char *redis_text(const struct redis *redis); /* its URL without the password */

/* The server's error classes as -errno:
 *   READONLY, MASTERDOWN  -EROFS    a replica, or a master that lost its place: the connection is given up and found anew
 *   OOM, MISCONF          -ENOSPC   its memory or disk is full: wait, nothing was written
 *   LOADING, BUSY, TRYAGAIN, CLUSTERDOWN, NOREPLICAS  -EAGAIN   wait
 *   NOAUTH, WRONGPASS, NOPERM                         -EACCES
 *   NOSCRIPT -ENOEXEC   NOGROUP -ESRCH   WRONGTYPE -EMEDIUMTYPE   others -EPROTO */
int redis_error_code(const char *text, size_t len);
/* How much of it a reader wants: without the place in a script that the server adds. */
size_t redis_error_len(const char *text, size_t len);
/* May the same call succeed later without anybody doing anything to the call?  Of codes that redis_reply_fn is given. */
bool redis_is_transient(int code);

#endif
