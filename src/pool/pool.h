/* pool.h - warm pools: processes of one command that stay alive and take job after job.
 *
 *   pool_submit ─▶ (waits for a worker with room) ─▶ on_given ─▶ on_chunk* ─▶ on_done
 *                                                           └──▶ on_lost    (its worker ended first)
 *
 * A pool fills itself: it starts `size_min` workers, more under load, a successor before a worker leaves, and after failing
 * starts waits longer and longer.  A job is given to a live worker that has said HELLO.  Each worker is a child of the nursery:
 * its whole tree is in one containment.  Loop thread only.
 */
#ifndef POOL_POOL_H
#define POOL_POOL_H

#include <jansson.h>
#include <uv.h>

#include "base/err.h"
#include "base/macro.h"
#include "child/nursery.h"
#include "job/spec.h"
#include "job/verdict.h"
#include "pool/peer.h"

enum pool_contamination { POOL_REPORT, POOL_RECYCLE, POOL_OFF };

/* One pool of mandor.yaml. */
struct pool_options {
    char *name;
    char **command;             /* NULL-terminated, at least one word */
    char **env;                 /* "NAME=value", NULL-terminated, or NULL */
    char *cwd;                  /* absolute; NULL = a fresh directory for each worker */
    char *user;                 /* NULL = unchanged */
    int64_t size_min, size_max; /* workers */
    int64_t concurrency;        /* jobs a worker at once */
    int64_t max_jobs;           /* of one worker in its life, 0 = no bound */
    int64_t max_memory_bytes;   /* of its tree, 0 = no bound */
    int64_t max_age_ms;         /* 0 = no bound */
    int64_t shrink_after_ms;    /* idle time of a worker above size_min */
    int64_t hello_timeout_ms, ping_interval_ms, kill_after_ms;
    char *contamination; /* "report", "recycle" or "off" */
    struct spec_limits limits;
    char *limits_policy; /* "strict" or "best_effort"; NULL = strict */
    char *containment;   /* "auto" … "strict"; NULL = auto */
};
/* 0 or -ENOMEM. */
MUST_CHECK int pool_options_copy(const struct pool_options *from, struct pool_options *to);
void pool_options_done(struct pool_options *options);

/* ---- all pools of a worker ---- */

struct pools;
struct pool;

/* env_pass: "NAME=value" entries that every worker gets; NULL-terminated, borrowed until closed. */
MUST_CHECK int pools_new(uv_loop_t *loop, struct nursery *nursery, char *const *env_pass,
                         struct pools **ret);
/* Start, change and drain pools so that these are there; options are copied.  Jobs of a pool that is gone are still run.
 * 0 or -ENOMEM (some are as they were). */
MUST_CHECK int pools_configure(struct pools *pools, const struct pool_options *options,
                               size_t count);
/* NULL: no such pool; then *err says which there are. */
struct pool *pools_find(struct pools *pools, const char *name, struct mandor_err *err);
/* [{"name": …, "state": …, "workers": […], …}], a new reference or NULL. */
json_t *pools_json(const struct pools *pools);
/* No job may be waiting or held.  Ends all workers; frees. */
void pools_close(struct pools *pools, void (*on_closed)(void *arg), void *arg);

/* ---- jobs ---- */

struct pool_job_events {
    /* A worker has it.  May come again: the worker died before it had read the job, and another one got it. */
    void (*on_given)(void *arg, pid_t pid, const char *slot, enum spec_containment containment);
    void (*on_chunk)(void *arg, bool is_stderr, const void *bytes, size_t len); /* as in peer.h */
    void (*on_chunk_end)(void *arg, bool is_stderr);
    void (*on_room)(void *arg);
    void (*on_progress)(void *arg, json_t *value);
    void (*on_log)(void *arg, const char *text);
    void (*on_done)(void *arg, json_t *result, json_t *error);
    /* Its worker has ended and nothing of it is alive; or the job could not be given (CAUSE_SPAWN; EAGAIN: no worker can be had). */
    void (*on_lost)(void *arg, const struct verdict *verdict);
};

struct warm;

/* Embedded in its owner; fields are the pool's. */
struct pool_job {
    struct peer_job peer;
    struct list node; /* pool->waiting, or its worker's held */
    struct pool *pool;
    struct warm *warm; /* NULL = waiting, or over */
    const struct peer_task *task;
    const struct pool_job_events *events;
    void *arg;
    bool waiting;
    bool cancelled; /* its worker was told so: it is not given to another one */
    bool stopped;   /* its worker was killed because of it */
};

/* task: borrowed until on_done or on_lost.  Callbacks come later, never from inside. */
void pool_submit(struct pool *pool, struct pool_job *job, const struct peer_task *task,
                 const struct pool_job_events *events, void *arg);
/* Take it back.  true: no worker had it, no callback comes.  false: it is held, or over. */
bool pool_job_withdraw(struct pool_job *job);
void pool_job_cancel(struct pool_job *job, const char *reason, int64_t grace_ms);
/* Kill the worker that holds it; on_lost follows. */
void pool_job_kill(struct pool_job *job);

#endif
