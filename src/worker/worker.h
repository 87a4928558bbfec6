/* worker.h - `mandor work`: one loop thread that leases jobs, runs attempts and settles them.
 *
 *   scheduler ──lease──▶ attempt ──executor──▶ verdict ──sinks──▶ settle
 *
 * This header is for the files of this folder and for cmd_work.c. */
#ifndef WORKER_WORKER_H
#define WORKER_WORKER_H

#include <uv.h>

#include "base/hash.h"
#include "base/list.h"
#include "broker/broker.h"
#include "child/nursery.h"
#include "config/config.h"
#include "exec/executor.h"
#include "pool/pool.h"
#include "python/python.h"
#include "stream/filter.h"

struct attempt;
struct live_server;
struct scheduler;
struct progress;

/* What the command line decided.  Borrowed for the whole run. */
struct worker_setup {
    struct config *config;   /* owned by the worker: SIGHUP replaces it */
    const char *config_path; /* as given, NULL = searched */
    /* The brokers of the served queues, each once.  The first one's data_dir is where this worker keeps its files. */
    const struct worker_broker {
        const char *url;
        const char *name; /* the same for people: the default's path is filled in, no password */
    } * brokers;
    size_t broker_count;
    const char *main_url; /* of queues whose configuration names no broker */
    bool main_configured; /* it is what the configuration said then */
    const char *name;     /* unique: <host>-<pid>-<random> */
    const char *data_dir;
    const char *lock_path;     /* liveness lock, held already (shared with the guard) */
    const char *const *queues; /* --queue; NULL = the configuration's, or all */
    size_t queue_count;
    int64_t concurrency; /* --concurrency; 0 = the configuration's */
    bool drain;
    bool progress; /* stderr is a terminal: people watch */
    int guard_fd;
};

/* One broker, and what the worker holds of it. */
struct source {
    struct worker *worker;
    const char *url, *name;
    struct broker *broker;
    /* The broker's: outputs by job id, and where its clients look for the live socket. */
    const char *data_dir;
    bool shared;        /* others can write there: jobs run only what the configuration says */
    struct hash *by_id; /* job id → its newest attempt */
    bool registered, registering, renewing, renew_again, recovering;
    bool changed;   /* other queues are served than it was told */
    char said[240]; /* why it is waited for, as the log says */
    int64_t said_ms;
    int64_t renewed_boot_ms; /* when the last successful renewal was asked for */
    struct broker_req recover_req, register_req, unregister_req;
    char *register_texts[2]; /* while registering */
};

struct worker {
    struct worker_setup setup;
    struct config *config;
    uv_loop_t loop;
    struct source *sources;
    size_t source_count;
    struct nursery *nursery;
    struct filter_pool *filters;
    struct pools *pools;
    struct pythons *pythons;
    struct executor_env env;
    char **env_pass; /* owned: what every job gets of our environment */
    struct scheduler *scheduler;
    struct live_server *live;
    struct progress *progress;
    struct reload *reload; /* the configuration is being read again; NULL = not now */

    struct list attempts; /* all that are leased, running or settling */
    size_t settling;      /* attempts that hold no slot any more */

    bool stopping;      /* no more leases; running jobs may end */
    int64_t held_up_ms; /* since when only brokers hold up the end; 0 = they do not */
    bool terminating;   /* running jobs were told to end */
    uint64_t random;    /* jitter */

    uv_timer_t tick, phase_timer, stop_timer;
    uv_prepare_t lag;
    uint64_t lag_last_ns, lag_idle_ns;
    uv_signal_t signals[6];
    /* Broker thread: the next time that a takeover that does not come about is told of. */
    int64_t complain_at_ms;
    bool registered, closing;
    bool over; /* all is closed: signals ask for nothing any more */
};

/* Runs until it is done; returns the exit code.  After guard_fork(), before any thread. */
int worker_run(const struct worker_setup *setup);

/* One of the folder's parts changed something that may end the run. */
void worker_check_done(struct worker *worker);
/* An attempt's phase changed: tell the broker of all that last longer than a moment. */
void worker_note_phases(struct worker *worker);
/* Ask the brokers to make due jobs ready and to take over from dead workers; then lease. */
void worker_recover(struct worker *worker);
/* The newest attempt of a job of the broker with that data directory (NULL = whichever); NULL = not here. */
struct attempt *worker_attempt(const struct worker *worker, const char *data_dir, const char *id);
/* What must be emptied when this worker is dead: "<name>\n<base>".  malloc'ed or NULL. */
char *worker_base_text(const struct worker *worker);
/* What a broker calls on its own thread for a worker that is dead: text is what REGISTER said. */
int worker_empty_dead(const char *text, void *arg);

/* ---- source.c: the brokers ---- */
MUST_CHECK int sources_open(struct worker *worker, struct mandor_err *err);
MUST_CHECK int sources_listen(struct worker *worker, struct mandor_err *err);
/* At the start.  Waits for the first broker, saying so; the others come later. */
MUST_CHECK int sources_register(struct worker *worker, struct mandor_err *err);
/* A broker that is out of reach holds up its own queues only: it is asked again every second. */
void source_register(struct source *source);
void source_recover(struct source *source);
/* The configuration has been read again: tell them which queues are served now. */
void sources_configure(struct worker *worker);
/* The broker of a queue by that configuration, or by ours; NULL when it is not one of ours. */
struct source *source_of(const struct worker *worker, const struct config *config,
                         const char *queue);
struct source *source_of_queue(struct worker *worker, const char *queue);

/* ---- reload.c ---- */
void worker_reload(struct worker *worker);

/* ---- signals.c ---- */
MUST_CHECK int signals_start(struct worker *worker);
void signals_stop(struct worker *worker);
void worker_stop(struct worker *worker); /* what SIGTERM does: each call is one step harder */

/* ---- renew.c: leases are kept, lost ones are acted upon ---- */
void renew_ask(struct source *source);
void renew_check_expiry(struct source *source);

#endif
