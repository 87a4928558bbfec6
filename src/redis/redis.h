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
    /* > 0: a server that is full (-ENOSPC) or not ready (-EAGAIN) is waited for, so long from when a call was made. */
    int64_t patience_ms;
    bool allow_replica; /* do not ask for ROLE: a replica will do (reading) */
    bool once; /* report a failure to connect to all calls instead of trying on: command line */
    /* A connection is ready: subscribe again, look for what was missed.  NULL allowed. */
    void (*on_up)(void *arg);
    void (*on_down)(void *arg, const struct mandor_err *err); /* it is gone.  NULL allowed */
    /* redis_subscribe() */
    void (*on_message)(void *arg, const char *channel, const char *payload, size_t len);
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

#define REDIS_AGAIN   1 /* may be carried out twice: make it again after a lost connection */
#define REDIS_FIRST   2 /* before everything that is not written yet */
#define REDIS_IN_TIME 4 /* no patience beyond the call's own time */

/* argv: copied.  lens NULL: NUL-terminated text.  timeout_ms: from now, waiting for a connection included.
 * fn is never called from inside of this.  Out of memory: fn hears of it. */
void redis_call(struct redis *redis, int flags, int64_t timeout_ms, size_t argc,
                const char *const *argv, const size_t *lens, redis_reply_fn *fn, void *arg);
/* The same with "%s %d %lld %b" as in redisCommand(3): words are separated by spaces, an argument never splits. */
void redis_callf(struct redis *redis, int flags, int64_t timeout_ms, redis_reply_fn *fn, void *arg,
                 const char *format, ...);

/* A Lua script, embedded at build time (broker/lua), or text (memory/scripts.c).  sha is filled at first use. */
struct redis_script {
    const char *name, *text;
    char sha[41];
};
/* EVALSHA with keys first, then args; the text is sent when the server does not know it (NOSCRIPT).  As redis_call(). */
void redis_eval(struct redis *redis, struct redis_script *script, int flags, int64_t timeout_ms,
                size_t key_count, size_t argc, const char *const *argv, const size_t *lens,
                redis_reply_fn *fn, void *arg);

/* Commands that are carried out all of them or none, and only while a key has the value that check() has seen:
 *
 *     WATCH key, GET key, MULTI, the commands, then EXEC, or DISCARD
 *
 * One call: made again as a whole after a lost connection, and when the key has changed meanwhile.  EXEC goes out with the answer to GET, what
 * is called next right behind it: the server is never waited for. */
struct redis_transaction;
struct redis_transaction *redis_transaction_new(const char *key); /* NULL: out of memory */
void redis_transaction_free(struct redis_transaction *txn);       /* of one that is not made */
/* As in redis_call(). */
void redis_transaction_add(struct redis_transaction *txn, size_t argc, const char *const *argv,
                           const size_t *lens);

#define REDIS_EXEC  1 /* carry it out */
#define REDIS_DONE  2 /* it was carried out before: fn hears of 0, without a reply */
#define REDIS_EARLY 3 /* one before it is made again, so this one has to be, too */
/* What value (NULL: the key is not there) means; or -errno with *err for fn.  Runs inside of the connection's callbacks. */
typedef int redis_check_fn(void *arg, const char *value, struct mandor_err *err);
void redis_transact(struct redis *redis, struct redis_transaction *adopt, int64_t timeout_ms,
                    redis_check_fn *check, redis_reply_fn *fn, void *arg);

/* SUBSCRIBE now and after every reconnect; messages come to on_message.  This connection then takes no calls.
 * 0 or -ENOMEM. */
MUST_CHECK int redis_subscribe(struct redis *redis, const char *channel);

bool redis_is_up(const struct redis *redis); /* takes calls at once */
/* Up, or waited for because it says that it is full or not ready. */
bool redis_is_connected(const struct redis *redis);
/* The server's redis_version as 7 * 10000 + 0 * 100 + 15; 0 before the first connection.  Valkey says which Redis it is like. */
int redis_version(const struct redis *redis);
/* What it is, for people: "Redis 7.0.15", "Valkey 9.1.2"; "" before the first connection. */
const char *redis_software(const struct redis *redis);
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
/* For "%.*s": how much of it a message shows, without the place in a script that the server adds. */
int redis_error_len(const char *text, size_t len);
/* May the same call succeed later without anybody doing anything to the call?  Of codes that redis_reply_fn is given. */
bool redis_is_transient(int code);

#endif
