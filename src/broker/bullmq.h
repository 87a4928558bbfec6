/* bullmq.h - the inside of the BullMQ broker, for its own files.
 *
 *                      ┌── calls ────▶ scripts, one at a time for each queue: ends of jobs and the fetch of others in one call
 *   struct bullmq ─────┼── ears  ────▶ SUBSCRIBE <prefix>:<queue>:mandor (cancels)                    worker only
 *                      └── queues ──┬▶ BZPOPMIN <prefix>:<queue>:marker, while nothing is to be had   worker only
 *                                   └▶ …
 *
 * What one turn of the loop submits is gathered; at its end (idle handles, then uv_prepare) one script call for each queue carries it
 * out: the jobs that have ended leave, others are taken in their place.  While a call is under way the next one gathers, and goes out
 * with the answer, so that the server works while the jobs that came with it start.
 *
 * A job is "<queue>:<id>" to the rest of mandor.  Its token in Redis is "<stem>:<ats>", and ats is mandor's attempt number. */
#ifndef BROKER_BULLMQ_H
#define BROKER_BULLMQ_H

#include "base/hash.h"
#include "base/list.h"
#include "broker/broker_ops.h"
#include "broker/bullmq_job.h"
#include "loop/work.h"
#include "redis/redis.h"

#define BULLMQ_LOCK_MS        30000
#define BULLMQ_CALL_MS        10000 /* one call, waiting for a connection included */
/* An idle queue is looked at that often, whatever the marker says. */
#define BULLMQ_DRAIN_DELAY_MS 5000
#define BULLMQ_BLOCK_MAX_MS   10000
#define BULLMQ_LIMIT_MAX_MS   30000          /* a rate-limited queue is looked at that often */
#define BULLMQ_ENDS_MAX       128            /* in one call */
#define BULLMQ_VERSION        "bullmq:6.0.0" /* whose form a queue that only mandor has written to has */

struct bullmq_queue;

/* What the URL says behind '?'. */
struct bullmq_settings {
    char *prefix;
    char *name;      /* of the worker, for the lists of workers; NULL = none */
    int64_t lock_ms; /* 0 = as long as the worker's lease */
    int64_t stalled_ms, max_stalled;
    int64_t max_started;         /* 0 = no bound */
    int64_t limit_max, limit_ms; /* 0 = none */
    int64_t metrics_points;      /* 0 = none */
    struct bullmq_keep completed, failed;
};

struct bullmq {
    struct broker *broker;
    struct redis_url url;
    struct bullmq_settings settings;
    struct redis *calls, *ears;
    char stem[64];   /* of the tokens of this process */
    char worker[64]; /* mandor's name of it; "" until it has registered */
    int64_t lock_ms;
    struct bullmq_queue **queues;
    size_t queue_count;
    struct hash *held;        /* lease id → struct bullmq_held */
    struct list taken;        /* ends that the server took lately (bullmq_settle_again()) */
    struct hash *taken_by_id; /* lease id → one of them */
    size_t taken_bytes;
    struct list leases;  /* BROKER_LEASE, to be answered in turn */
    size_t lease_at;     /* which of the first one's queues is asked next */
    size_t started;      /* of the jobs that this queue gave to it */
    struct list answers; /* requests that are done */
    size_t unanswered;   /* requests, those in answers included */
    struct list recovers;
    uv_idle_t awake; /* there is something to do at the end of the turn: the loop does not wait */
    uv_prepare_t turn;
    uv_timer_t renew_timer, stalled_timer;
    struct work sweep; /* what dead workers of this machine left */
    int (*sweep_empty)(const char *text, void *arg);
    void *sweep_arg;
    int64_t sweep_due_ms; /* monotonic */
    bool sweeping, closing, was_up;
    unsigned open; /* handles and connections */
    uint64_t random;
};

/* A job that this process has. */
struct bullmq_held {
    struct bullmq_queue *queue;
    char *id; /* BullMQ's */
    int64_t attempt;
    int64_t made; /* atm */
    struct bullmq_opts opts;
    char *stack, *record; /* as they were when it was taken; never NULL */
    int64_t renewed_ms;   /* monotonic; its lock was in force then */
    bool last_try;        /* it may not be started again */
    bool doubtful;        /* its end was sent, and the answer lost */
    bool lost, cancel;
};

/* A job on its way out of `active`. */
struct bullmq_end {
    struct list node;
    struct bullmq_queue *queue;
    struct broker_req *req; /* BROKER_SETTLE, or NULL: our own */
    char *lease_id;         /* of the job; held until this is answered */
    char *id;
    int64_t attempt;
    const char *what;
    char *value, *stack, *record; /* never NULL */
    int64_t attempts, delay_ms;
    struct bullmq_keep keep;
    bool lifo;
    unsigned tries;
    bool alone;       /* the call that it was part of failed: whose fault was it? */
    bool doubtful;    /* an earlier call may have carried it out */
    bool again;       /* the server took it before: written only if it has been lost */
    int64_t taken_ms; /* monotonic */
};

/* One call under way. */
struct bullmq_step {
    struct bullmq_queue *queue;
    struct list ends;
    size_t end_count, wanted;
    struct broker_req *lease; /* whom the jobs are for */
};

struct bullmq_queue {
    struct bullmq *mq;
    char *name, *base; /* base: "<prefix>:<queue>:" */
    size_t base_len;
    char *meta;       /* base + "meta": routes the calls */
    struct list ends; /* wait for a call */
    size_t end_count;
    struct bullmq_step *step;
    bool dry;             /* nothing can be taken as far as we know */
    int64_t dry_until_ms; /* monotonic */
    bool owed;            /* its marker was popped, and nobody has looked yet */
    bool lost_answer; /* a fetch was sent and not answered: jobs may be ours without our knowing */
    bool drained;     /* nothing was left to do at the last look */
    bool served;      /* by this worker */
    struct redis *waiter;
    bool blocking;
    int64_t due_ms;   /* wall clock; when the next delayed job is due; 0 = none known */
    uv_timer_t timer; /* a rate limit ends */
    bool timer_open;
    int64_t stalled_due_ms; /* monotonic; the next check */
    bool checking, renewing;
};

/* ---- broker_bullmq.c ---- */

extern const struct broker_ops broker_bullmq;

/* NULL when out of memory. */
struct bullmq_queue *bullmq_queue(struct bullmq *mq, const char *name);
/* done() at the end of this turn of the loop. */
void bullmq_answer(struct bullmq *mq, struct broker_req *req, int status);
/* The same with an error of Redis. */
void bullmq_fail(struct bullmq *mq, struct broker_req *req, int status,
                 const struct mandor_err *err);
void bullmq_turn(struct bullmq *mq); /* something is to be done at its end */

/* ---- bullmq_args.c: the arguments of a script ---- */

struct bullmq_args {
    struct buf bytes;
    size_t *ends; /* where each argument ends in bytes */
    size_t count, cap;
    bool failed;
};
/* Begin with the two that all scripts have. */
void bullmq_args_init(struct bullmq_args *args, const struct bullmq_queue *queue);
void bullmq_args_text(struct bullmq_args *args, const char *text);
void bullmq_arg_int(struct bullmq_args *args, int64_t value);
/* Call script with them on one of the queue's connections and let go of them. */
void bullmq_call(struct bullmq_queue *queue, struct bullmq_args *args, struct redis_script *script,
                 int flags, redis_reply_fn *fn, void *arg);

/* Replies: text "" where it is none. */
const char *bullmq_reply_text(const redisReply *reply, size_t index, size_t *ret_len);
int64_t bullmq_reply_int(const redisReply *reply, size_t index);

/* ---- bullmq_step.c: jobs leave and are taken ---- */

void bullmq_lease(struct bullmq *mq, struct broker_req *req);
void bullmq_settle(struct bullmq *mq, struct broker_req *req);
void bullmq_give_back(struct bullmq *mq, struct broker_req *req);
bool bullmq_flush(struct bullmq *mq); /* the end of a turn; true: something goes to the server */
/* The connection is back, perhaps to a server that was killed, or is a replica that was behind, and has lost its last writes: the ends of the last
 * minute are written again where they are missing. */
void bullmq_settle_again(struct bullmq *mq);
char *bullmq_lease_id(const struct bullmq_queue *queue, const char *id); /* malloc'ed or NULL */
struct bullmq_held *bullmq_held_free(struct bullmq_held *held);
void bullmq_end_free(struct bullmq_end *end);

/* ---- bullmq_worker.c: what a worker does besides ---- */

void bullmq_start(struct bullmq *mq, struct broker_req *req);
bool bullmq_cancel_asked(const struct bullmq_held *held); /* before it was taken */
void bullmq_renew(struct bullmq *mq, struct broker_req *req);
void bullmq_renew_locks(struct bullmq *mq); /* now */
void bullmq_hear_cancel(struct bullmq *mq, const char *channel, const char *id);
void bullmq_begin_settle(struct bullmq *mq, struct broker_req *req);
void bullmq_note(struct bullmq *mq, struct broker_req *req);
void bullmq_phase(struct bullmq *mq, struct broker_req *req);
void bullmq_recover(struct bullmq *mq, struct broker_req *req);
void bullmq_register(struct bullmq *mq, struct broker_req *req);
/* A job of a scheduler was taken: make the next one. */
void bullmq_repeat(struct bullmq_queue *queue, const struct bullmq_held *held, const char *rjk);

/* ---- bullmq_wait.c: idle queues ---- */

/* Nothing could be taken: wait for the marker, or until the rate limit (ms; 0 = none) ends. */
void bullmq_wait(struct bullmq_queue *queue, int64_t limit_ms);

/* ---- bullmq_add.c, bullmq_client.c: the command line ---- */

int bullmq_check_spec(const struct spec *spec, struct mandor_err *err);
void bullmq_add(struct bullmq *mq, struct broker_req *req);
void bullmq_show(struct bullmq *mq, struct broker_req *req);
void bullmq_list(struct bullmq *mq, struct broker_req *req);
void bullmq_output(struct bullmq *mq, struct broker_req *req);
void bullmq_change(struct bullmq *mq, struct broker_req *req);
void bullmq_pause(struct bullmq *mq, struct broker_req *req);
void bullmq_stats(struct bullmq *mq, struct broker_req *req);

#endif
