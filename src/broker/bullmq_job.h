/* bullmq_job.h - BullMQ's forms of a job: its options, its backoff, its stack traces, the record that mandor keeps with it.
 * Pure: texts in, texts out.  Any thread. */
#ifndef BROKER_BULLMQ_JOB_H
#define BROKER_BULLMQ_JOB_H

#include <jansson.h>

#include "base/err.h"
#include "base/macro.h"
#include "broker/broker.h"

#define BULLMQ_KEEP_LIMIT  1000  /* removals in one go, when the producer does not say */
#define BULLMQ_STACK_BYTES 16384 /* of the end of stderr, in one entry of the stack trace */

/* removeOnComplete, removeOnFail */
struct bullmq_keep {
    bool given;
    int64_t count; /* -1 = all, 0 = none, n = the newest n */
    int64_t age_s; /* 0 = any */
    int64_t limit;
};

enum bullmq_backoff {
    BULLMQ_BACKOFF_NONE,
    BULLMQ_BACKOFF_FIXED,
    BULLMQ_BACKOFF_EXPONENTIAL,
    BULLMQ_BACKOFF_UNKNOWN /* a strategy that the producer's own workers know */
};

struct bullmq_opts {
    int64_t attempts; /* 0 and 1: one try */
    enum bullmq_backoff backoff;
    char backoff_type[32]; /* of an unknown one, for messages */
    double backoff_ms, jitter;
    int64_t stack_limit; /* -1 = none */
    int64_t keep_logs;   /* 0 = all */
    int64_t priority;
    bool lifo;
    struct bullmq_keep completed, failed;
    json_t *repeat; /* borrowed from json */
    int64_t prev_ms;
    json_t *json; /* all of it; object */
};

/* Returns 0, -EINVAL (no JSON object; *err says where) or -ENOMEM.  ret: ended by bullmq_opts_done(), also after a failure. */
MUST_CHECK int bullmq_opts_parse(const char *text, size_t len, struct bullmq_opts *ret,
                                 struct mandor_err *err);
void bullmq_opts_done(struct bullmq_opts *opts);

/* ms before the next try after `made` attempts (this one counted); random01: uniform in [0, 1).  -1: the type is not known. */
int64_t bullmq_backoff_ms(const struct bullmq_opts *opts, int64_t made, double random01);

/* The stack traces with one more: JSON array of strings, oldest first, the last `limit` of them (-1 = all).
 * old: what the job has, "" = nothing; what is no array counts as nothing.  malloc'ed or NULL. */
char *bullmq_stack(const char *old, const char *entry, int64_t limit);

/* The reason of an attempt's end with the end of its standard error below: what a stack trace is to a program.
 * record: record_attempt_text(), NULL = none.  malloc'ed or NULL. */
char *bullmq_trace(const char *reason, const char *record);

/* "<queue>:<id>" is how mandor names a job: no queue has a ':' in its name, an id may.  *ret_queue: malloc'ed; *ret_id: in text.
 * 0, -EINVAL (it is no such name) or -ENOMEM. */
MUST_CHECK int bullmq_split_id(const char *text, char **ret_queue, const char **ret_id);

/* CLIENT SETNAME of a worker: "<prefix>:<base64 of the queue>[:w:<name>]".  malloc'ed or NULL. */
char *bullmq_client_name(const char *prefix, const char *queue, const char *name);

/* ---- the field `mandor` of a job's hash ---- */

struct bullmq_record {
    const char *worker;
    int64_t attempt;
    enum job_state state; /* as mandor sees it: "cancelled" is a failure to BullMQ */
    const char *phase;    /* while it is active; NULL = none */
    int64_t started_ms, finished_ms;
    int64_t put_backs;  /* so many times in a row */
    const char *last;   /* record_attempt_text(); NULL = nothing */
    const char *before; /* the field as it was; "" = none: history is carried over */
    const void *out, *errout;
    size_t out_len, errout_len;
};
/* malloc'ed or NULL. */
char *bullmq_record_text(const struct bullmq_record *record);

/* What an earlier text says; *ret_json NULL when it is "" or none of ours. */
json_t *bullmq_record_parse(const char *text, size_t len);
/* A number of it, or fallback. */
int64_t bullmq_number(const json_t *object, const char *key, int64_t fallback);

/* opts of a scheduler's next job: this one's, its count one up; JSON text without the last brace, to which bullmq_repeat.lua adds jobId,
 * delay, timestamp, prevMillis and repeatJobKey.  malloc'ed or NULL. */
char *bullmq_repeat_opts(const struct bullmq_opts *opts, int64_t count);

#endif
