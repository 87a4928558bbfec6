/* attempt.h - one attempt's state machine in a worker (attempt_moves.def).  Loop thread only. */
#ifndef WORKER_ATTEMPT_H
#define WORKER_ATTEMPT_H

#include "exec/outputs.h"
#include "worker/worker.h"

enum attempt_state {
    ATTEMPT_LEASED,
    ATTEMPT_STARTING,
    ATTEMPT_RUNNING,
    ATTEMPT_COMMITTING,
    ATTEMPT_SETTLING,
    ATTEMPT_DONE,
    ATTEMPT_DROPPED,
    ATTEMPT_STATES
};
enum attempt_event {
    ATTEMPT_START,
    ATTEMPT_STARTED,
    ATTEMPT_ENDED,
    ATTEMPT_COMMITTED,
    ATTEMPT_SETTLED,
    ATTEMPT_LOST,
    ATTEMPT_EVENTS
};
/* The next state, or -1 where attempt_moves.def has no such move. */
int attempt_next(enum attempt_state state, enum attempt_event event);
const char *attempt_state_name(enum attempt_state state);

struct attempt {
    uint32_t magic;
    struct worker *worker;
    struct source *source;
    struct list node;       /* worker->attempts */
    struct list queue_node; /* scheduler, while LEASED */
    enum attempt_state state;
    struct lease lease;
    struct spec *spec;
    struct mandor_err invalid; /* why the job's text is none; spec is a stand-in then */
    struct verdict verdict;
    struct retry_plan plan;
    struct outputs outputs;
    struct execution *execution;
    struct broker_req req; /* start, begin_settle, settle: one at a time */
    struct broker_req phase_req;
    bool phase_busy, req_busy;
    const char *phase, *phase_noted; /* static text */
    pid_t pid;
    const char *containment; /* the rung; static text */
    char slot[64];
    uv_timer_t timer; /* backoff of broker requests that failed */
    bool timer_open;
    int64_t backoff_ms;
    int64_t asked_boot_ms;        /* when req was submitted */
    int64_t commit_until_boot_ms; /* the commit under way must end by then; 0 = none under way */
    int64_t started_ms, finished_ms, leased_mono_ms, started_mono_ms;
    struct buf record;     /* while settling */
    json_t *again;         /* when it wants to be run again, as it said; NULL = it does not */
    enum cause stop_cause; /* asked for before the executor ran, or after it */
    bool outputs_ending;
    /* The queue gave its job out once more, not started, as attempt `leased_as`: it goes back when this one has ended. */
    bool leased_again;
    int64_t leased_as;
    /* Monotonic: nothing of the outputs is waited for longer; 0 = no stop. */
    int64_t commit_stop_ms;
    bool stop_asked;
    unsigned closing;
};

/* A job is leased whose attempt has not ended here: a queue that was restarted without its last writes gives out what it has forgotten.  No two
 * attempts of a job live at the same time (I8): the one that is here goes on, with this lease when it has its number.  Says so in the log. */
bool attempt_is_here(const struct source *source, const struct lease *lease);
/* Take a lease over.  Returns NULL when out of memory (the lease then simply expires with us). */
struct attempt *attempt_new(struct source *source, struct lease *adopt);
/* A slot is free. */
void attempt_start(struct attempt *attempt);
/* Its lease has started it already: run it, in the slot that was kept for it. */
void attempt_run_started(struct attempt *attempt);
/* End it for cause (cancelled, shutdown, lost_lease); grace_ms < 0 = the job's kill_after. */
void attempt_stop(struct attempt *attempt, enum cause cause, int64_t grace_ms, const char *why);
/* Its lease was renewed and holds until then.  Or look whether it is over: a commit that lasts longer is broken off. */
void attempt_renewed(struct attempt *attempt, int64_t until_boot_ms);
void attempt_check_expiry(struct attempt *attempt);
/* Leased but never started: forget it (the broker was told or has taken it away). */
void attempt_drop(struct attempt *attempt);
/* A phase note that was under way when the attempt ended is answered. */
void attempt_phase_done(struct attempt *attempt);
/* The command as one line for people, cut to size, control characters replaced. */
void attempt_command(const struct attempt *attempt, char *text, size_t size);
bool attempt_holds_slot(const struct attempt *attempt);

#endif
