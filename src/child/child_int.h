/* child_int.h - struct child and struct nursery, for the files of this directory alone.
 *
 *   launch.c   spawner thread: everything up to exec
 *   launch_copy.c  the same for a copy of a fork server
 *   child.c    the state machine, the sentinel's side of one child
 *   stop.c     the ladder: SIGTERM, grace, kill, until the tree is empty
 *   nursery.c  what is shared: threads, SIGCHLD, the guard's link, directories
 */
#ifndef CHILD_CHILD_INT_H
#define CHILD_CHILD_INT_H

#include "child/child.h"
#include "child/lane.h"
#include "child/scratch.h"
#include "child/slot.h"

#define CHILD_MAGIC   0x6368696cu
#define NURSERY_MAGIC 0x6e757273u

enum child_state {
    CHILD_STARTING,
    CHILD_RUNNING,
    CHILD_EXITED,
    CHILD_HOLLOW,
    CHILD_EMPTYING,
    CHILD_DUE,
    CHILD_EMPTY,
    CHILD_GONE,
    CHILD_STATES
};
enum child_event {
    CHILD_SPAWNED,
    CHILD_SPAWN_FAILED,
    CHILD_REAPED,
    CHILD_TREE_EMPTY,
    CHILD_EMPTY_ASKED,
    CHILD_TOLD,
    CHILD_CLOSED,
    CHILD_EVENTS
};
/* The state after `event`, or -EPROTO when there is no such move. */
int child_next(enum child_state state, enum child_event event);

enum ladder { LADDER_FLOOR, LADDER_TERM, LADDER_GRACE, LADDER_KILL };
enum stop_op { OP_TERMINATE, OP_COUNT, OP_KILL };

struct child {
    uint32_t magic;
    struct kin kin;
    struct nursery *nursery;
    struct list node; /* nursery->children */
    struct list due;  /* nursery->due: on_empty is to be called */
    enum child_state state;
    struct child_launch launch; /* what it points at is the owner's until on_spawned or on_exited */
    char *label;
    const struct child_events *events;
    void *arg;

    /* Written by the spawner thread before its answer. */
    struct lane_task launch_task;
    struct slot *slot;
    int pidfd;
    struct child_pipes pipes;
    int given[4]; /* stdout_fd, stderr_fd, channel_fd, zygote_fd: duplicates until the clone */
    char *tmp_dir, *work_dir;
    unsigned limits_asked, limits_enforced; /* LIMIT_ bits */
    /* Of the launch, whose strings are not ours later. */
    bool cpu_limited, file_limited, as_ourselves;
    int failed; /* 0, or the launch's -errno */
    enum spawn_stage failed_stage;
    char error[240];
    int64_t asked_at_ns;

    /* Loop thread. */
    int64_t started_at_ns;
    struct verdict verdict;
    bool exit_watched, oom_watched; /* the handles below are in use */
    uv_poll_t exit_watch, oom_watch;
    uv_timer_t timer;
    int open_handles;
    char slot_name[16];
    enum spec_containment rung;

    enum ladder ladder;
    bool stop_asked, term_sent, tree_empty, empty_asked, killed;
    enum cause stop_cause;
    int64_t kill_at_ms;       /* monotonic: when the grace ends */
    int64_t kill_began_at_ms; /* 0 = not yet */
    bool pending_told;
    int wait_ms;        /* how long the next look is put off */
    int64_t look_at_ms; /* monotonic: not before */
    int64_t descendants_killed;
    struct lane_task stop_task;
    bool stop_busy, op_began_reaped;
    enum stop_op op;
    int op_result;
};

struct nursery {
    uint32_t magic;
    uv_loop_t *loop;
    char *name;
    struct scratch scratch; /* <scratch_dir>/<name>; spawner thread */
    char *base_text;
    bool own_scratch, adopt_orphans, closing, rescan;
    int guard_fd;
    bool guard_lost;
    void (*on_guard_lost)(void *arg);
    void *arg;

    struct kinship kinship;
    _Atomic(struct child *) launching; /* whose clone is under way */
    struct yard yard;
    struct lane *spawner, *killer;
    struct spawner_memory *memory; /* spawner thread */
    int dev_null;
    bool own_nofile; /* our soft RLIMIT_NOFILE was raised: children get the first one back (R06) */
    struct rlimit nofile;
    uint64_t not_ignored; /* spawn_plan.not_ignored */

    struct list children, due;
    int alive;  /* children whose tree is not empty */
    int chores; /* directory and slot removals under way */
    struct lane_task nudge;
    struct list trash; /* slots to destroy, again */
    struct lane_task last_task;

    uv_async_t answers;
    uv_signal_t sigchld;
    uv_poll_t guard_watch;
    uv_idle_t turn; /* calls on_empty of `due` outside of the caller's stack */
    uv_timer_t janitor;
    uv_timer_t last_wait; /* after the guard was lost */
    int64_t last_wait_until_ms;
    bool have_yard, have_answers, have_sigchld, have_guard; /* for a half-built one */
    int close_tries;
    int open_handles;
    void (*on_closed)(void *arg);
    void *closed_arg;
};

/* launch.c */
void launch_run(struct lane_task *task);
/* What a launch made and nobody took over: pipes, duplicates. */
void launch_release(struct child *child);
/* Why the launch failed, for its verdict.  Return the error. */
int launch_note(struct child *child, enum spawn_stage stage, const struct mandor_err *err);
int launch_fail(struct child *child, enum spawn_stage stage, int error, const char *fmt, ...)
    PRINTF_LIKE(4, 5);                              /* notes it; returns error */
int launch_pipe(int *near, int *far, bool we_read); /* near is ours, O_NONBLOCK */

/* launch_copy.c: the same for a copy of a fork server. */
int launch_copy(struct child *child);

/* child.c */
void child_move(struct child *child, enum child_event event);
void child_launched(struct lane_task *task);
void child_reap(struct child *child);
/* Will nobody tell of its end (out of memory)?  The ladder's timer looks for it then. */
bool child_unwatched(const struct child *child);
/* It is not started: on_exited with this reason follows from the loop's turn. */
void child_refuse(struct child *child, enum spawn_stage stage, int error, const char *why);
void child_tell_empty(struct child *child);
/* Before the slot, whose descriptor it is, is given back. */
void child_unwatch_oom(struct child *child);

/* stop.c */
void child_pulse(struct child *child); /* do what is due now; safe whenever something has changed */
void stop_init(struct child *child);

/* nursery.c */
void nursery_due(struct nursery *nursery, struct child *child);
/* Give back the slot, remove its directories. */
void nursery_tidy(struct nursery *nursery, struct child *child);

#endif
