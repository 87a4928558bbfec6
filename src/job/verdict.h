/* verdict.h - how an attempt ended, and the one table of what follows from it.
 *
 *     verdict ──(outcome.def)──▶ outcome ──(retry_plan)──▶ next state and due time
 *
 * Pure.  Any thread.
 */
#ifndef JOB_VERDICT_H
#define JOB_VERDICT_H

#include "base/macro.h"
#include "job/spec.h"

enum cause {
    CAUSE_EXIT,
    CAUSE_SIGNAL,
    CAUSE_TIMEOUT,
    CAUSE_IDLE_TIMEOUT,
    CAUSE_CANCELLED,
    CAUSE_OOM,
    CAUSE_LIMIT,
    CAUSE_SPAWN,
    CAUSE_SINK,
    CAUSE_PROTOCOL,
    CAUSE_LOST_LEASE,
    CAUSE_SHUTDOWN,
    CAUSE_WORKER_DIED,
    CAUSE_AGAIN, /* exited 0 and asked to be run again, {"again": …} on fd 3 */
    CAUSE_COUNT
};
const char *cause_name(enum cause cause); /* "exit", "idle_timeout", … */

/* Where between the request and exec(2) a start failed.  Names stand in spawn stage messages. */
enum spawn_stage {
    STAGE_NONE,
    STAGE_PREPARE, /* directories, descriptors, limits the host cannot enforce */
    STAGE_LOOKUP,  /* program not found in the job's PATH */
    STAGE_CLONE,
    STAGE_CGROUP,
    STAGE_NAMESPACE,
    STAGE_SESSION,
    STAGE_STDIO,
    STAGE_RLIMIT,
    STAGE_USER,
    STAGE_CHDIR,
    STAGE_EXEC,
    STAGE_COUNT
};
const char *spawn_stage_name(enum spawn_stage stage); /* "chdir", "exec", … */

struct verdict {
    enum cause cause;
    int exit_code; /* -1 unless the leader exited by itself */
    int signal;    /* 0 unless a signal ended the leader */
    bool core_dumped;
    bool forced;            /* SIGKILL was needed after the grace period */
    enum spawn_stage stage; /* CAUSE_SPAWN */
    int spawn_errno;        /* CAUSE_SPAWN: positive errno */
    int64_t user_us, system_us, max_rss_bytes, wall_ms;
    int64_t descendants_killed;
    char error[240]; /* one sentence for people; "" after exit 0 */
};

enum outcome {
    OUTCOME_COMPLETED,
    OUTCOME_RETRY,    /* charged; becomes failed when attempts_used reaches attempts */
    OUTCOME_FAILED,   /* at once */
    OUTCOME_PUT_BACK, /* not charged; waits 1 s, doubling to 60 s */
    OUTCOME_CANCELLED,
    OUTCOME_NOTHING, /* lost lease: write nothing */
};

/* The end in a phrase for people: "exit code 3", "timeout of 2s", "signal: killed by signal 9 (SIGKILL)": the cause stands first
 * unless the error names it itself.  Returns buf. */
#define VERDICT_TEXT_SIZE 300
const char *verdict_text(const struct verdict *verdict, char buf[static VERDICT_TEXT_SIZE]);

/* Look the verdict up in outcome.def.  no_retry_exit_codes come from spec. */
enum outcome verdict_outcome(const struct verdict *verdict, const struct spec *spec);

/* Is errno of a failed start permanent (ENOENT, EACCES, ENOEXEC, E2BIG, ENOTDIR, …)? */
bool spawn_errno_permanent(int errno_value, enum spawn_stage stage);

enum job_state {
    JOB_WAITING,
    JOB_DELAYED,
    JOB_ACTIVE,
    JOB_COMPLETED,
    JOB_FAILED,
    JOB_CANCELLED,
    JOB_STATES
};
const char *job_state_name(enum job_state state);
int job_state_from_name(const char *name); /* or -ENOENT */
static inline bool job_state_final(enum job_state state)
{
    return state >= JOB_COMPLETED;
}

/* What the broker writes when an attempt ends. */
struct retry_plan {
    enum job_state state;
    bool charged;     /* attempts_used + 1 */
    int64_t delay_ms; /* JOB_DELAYED: how long from now; 0 with JOB_WAITING */
};

/* outcome: of this attempt; attempts_used: before this one; put_backs: consecutive put-backs so far;
 * random01: uniform in [0, 1), for jitter.  OUTCOME_NOTHING is a bug. */
struct retry_plan retry_plan(enum outcome outcome, const struct spec *spec, int64_t attempts_used,
                             int64_t put_backs, double random01);

#endif
