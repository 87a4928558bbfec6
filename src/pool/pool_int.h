/* pool_int.h - struct pool and struct warm, for pool.c (who works, who comes, who goes), pools.c (all pools) and warm.c (the
 * life of one process) alone. */
#ifndef POOL_POOL_INT_H
#define POOL_POOL_INT_H

#include "child/child.h"
#include "loop/work.h"
#include "pool/inspect.h"
#include "pool/pool.h"
#include "pool/prints.h"

#define POOL_MAGIC 0x706f6f6cu
#define WARM_MAGIC 0x7761726du

enum warm_state {
    WARM_SPAWNING,
    WARM_GREETING,
    WARM_READY,
    WARM_LEAVING,
    WARM_STOPPING,
    WARM_ENDING,
    WARM_GONE,
    WARM_STATES
};
enum warm_event {
    WARM_SPAWNED,
    WARM_HELLO,
    WARM_RETIRE,
    WARM_STOP,
    WARM_EXITED,
    WARM_EMPTY,
    WARM_EVENTS
};
/* The state after `event`, or -EPROTO where pool_moves.def has no such move. */
int warm_next(enum warm_state state, enum warm_event event);
const char *warm_state_name(enum warm_state state);

/* One worker process. */
struct warm {
    uint32_t magic;
    struct pool *pool;
    struct list node; /* pool->warms */
    enum warm_state state;
    uint64_t number;             /* of this pool's workers */
    struct pool_options options; /* what it was started with */
    unsigned version;            /* of those */
    struct child *child;
    pid_t pid;
    int socket; /* our end, until there is a process; -1 afterwards */
    char **envp;
    struct peer *peer;
    struct prints *out, *err;
    uv_timer_t timer; /* how long it is waited for: after BYE, after its end of file */
    unsigned parts;   /* what must still close */

    struct list held;
    size_t held_count;
    int64_t jobs_given, jobs_done, jobs_max; /* jobs_max: 0 = no bound */
    int64_t started_ms, ready_ms, idle_since_ms, age_max_ms;
    const char *due; /* why it should be replaced soon; static text, NULL = it should not */
    bool replacing;  /* its successor is on the way; it still works */
    bool spent;      /* takes no more jobs */
    bool was_ready, expected; /* expected: it was told to go */
    bool killed_for_job;
    struct verdict verdict;
    int peer_result;
    char why[200]; /* why it ended */

    /* The look from outside, on a pool thread. */
    struct work look;
    bool looking, look_deep, look_void; /* look_void: a job was there meanwhile */
    int look_result;
    int64_t looked_ms, looked_jobs;
    struct inspection base, now;
    bool have_base, drift_told;

    /* Lines for the log: a bucket of tokens. */
    double tokens;
    int64_t tokens_ms;
    uint64_t left_out;
};

struct pool {
    uint32_t magic;
    struct pools *pools;
    struct list node; /* pools->list */
    struct pool_options options;
    unsigned version; /* of options */
    bool leaving;     /* not in the configuration any more */
    bool closing;     /* every worker is to go, then the pool */
    struct list warms, waiting;
    size_t warm_count, waiting_count, held_count;
    uint64_t next_number;
    uv_idle_t turn; /* gives waiting jobs outside of their owners' calls */
    uv_timer_t tick;
    unsigned handles;

    int failures;             /* starts that failed in a row */
    int64_t failing_since_ms; /* monotonic: the first of them */
    int64_t failed_ms;        /* monotonic: when the last one did */
    int64_t next_start_ms;    /* monotonic: not before */
    int64_t jobs_done, recycles, deaths, failed_starts, started;
    char last_error[240];
};

struct pools {
    uv_loop_t *loop;
    struct nursery *nursery;
    char *const *env_pass;
    struct list list;
    uint64_t random;
    bool closing;
    void (*on_closed)(void *arg);
    void *closed_arg;
};

/* ---- warm.c ---- */

/* Start one.  0 or -errno (nothing is left of it then). */
MUST_CHECK int warm_start(struct pool *pool);
/* 0, or what peer_give() says. */
MUST_CHECK int warm_give(struct warm *warm, struct pool_job *job);
/* Let it end what it holds, and go. */
void warm_retire(struct warm *warm, const char *reason);
/* Kill it; cause is what its verdict will say. */
void warm_stop(struct warm *warm, enum cause cause, int64_t grace_ms);
void warm_look(struct warm *warm, bool deep);
bool warm_has_room(const struct warm *warm);
json_t *warm_json(const struct warm *warm);

/* ---- pool.c ---- */

MUST_CHECK int pool_new(struct pools *pools, const struct pool_options *options, struct pool **ret);
/* Other options from now on: workers are replaced one after the other.  0 or -ENOMEM. */
MUST_CHECK int pool_change(struct pool *pool, const struct pool_options *options);
bool pool_options_same(const struct pool_options *a, const struct pool_options *b);
/* Do what is due: start, mark, retire, give. */
void pool_tend(struct pool *pool);
/* Give waiting jobs to workers with room. */
void pool_serve(struct pool *pool);
/* Not wanted any more: ends when its last job has. */
void pool_leave(struct pool *pool);
void pool_close(struct pool *pool);
/* A worker that died had not read this job: it waits again, first in line. */
void pool_give_again(struct pool *pool, struct pool_job *job);
/* A worker's process has gone. */
void pool_note_end(struct pool *pool, struct warm *warm);
json_t *pool_json(const struct pool *pool);

/* ---- pools.c ---- */

/* The pool is closed: unlink it, and free it. */
void pools_forget(struct pools *pools, struct pool *pool);

#endif
