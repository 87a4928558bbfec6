/* sink_redis.h - what the two kinds of sinks on Redis share: a connection, and the first failure. */
#ifndef MEMORY_SINK_REDIS_H
#define MEMORY_SINK_REDIS_H

#include "memory/scripts.h"
#include "redis/target.h"
#include "sink/sink_ops.h"

#define REDIS_SINK_MS INT64_C(30000) /* one call, reconnecting included */
#define REDIS_OPEN_MS INT64_C(10000)
#define REDIS_WINDOW  ((size_t)1 << 20) /* bytes that are written and not confirmed */

/* Outlives its sink: the connection closes later. */
struct redis_sink {
    struct sink *sink;
    struct redis *redis;
    struct target target;
    char *fence; /* key, see scripts.h */
    char *job, attempt[24];
    char owner[48]; /* see scripts.h */
    size_t flying;  /* bytes */
    unsigned calls;
    bool opening;
    int result; /* first failure */
    struct mandor_err err;
    void (*done)(struct redis_sink *base); /* frees it */
};

/* Parse, connect, begin the attempt: the script's answer is the sink's.  0 or -errno with *err. */
MUST_CHECK int redis_sink_open(struct redis_sink *base, struct sink *sink,
                               const struct sink_target *target, struct mandor_err *err);
/* Note a failure of a call: STALE becomes -ESTALE. */
void redis_sink_fail(struct redis_sink *base, int result, const struct mandor_err *err);
/* The sink's interrupt: a failure of its own, which answers an open that is in flight. */
void redis_sink_given_up(struct redis_sink *base);
/* Give the connection up: calls without an answer are answered with -ECANCELED before this returns. */
void redis_sink_drop_calls(struct redis_sink *base);
/* How long a call of the commit may take. */
int64_t redis_sink_commit_ms(struct redis_sink *base);

#endif
