/* slot.h - one containment of one attempt, and the yard that lends them.
 *
 *   slot_take ─▶ slot_plan ─▶ slot_enter, clone, slot_leave ─▶ … ─▶ slot_give ─▶ (idle, taken again) or slot_destroy
 *
 * A slot in which nothing had to be killed and which is empty is idle until the next attempt of its rung: that saves making and
 * removing a cgroup (or a namespace) for each job.  Any other one is destroyed, and so is what exceeds SLOT_IDLE_MAX: each idle
 * slot costs two descriptors and a cgroup.
 */
#ifndef CHILD_SLOT_H
#define CHILD_SLOT_H

#include "base/err.h"
#include "base/list.h"
#include "base/macro.h"
#include "child/contain.h"
#include "child/keeper.h"
#include "child/sweep.h"
#include "os/cgroup.h"
#include "os/spawn.h"

enum slot_limit { SLOT_MEMORY, SLOT_PIDS, SLOT_CPU, SLOT_LIMITS };

struct slot {
    struct list node;
    enum spec_containment rung; /* never CONTAIN_AUTO */
    char name[16];              /* "s7", "n7", "g7" */
    bool kept;                  /* may be idle again: no limit was set in it */
    /* cgroup, strict */
    int cgroup, events; /* the version 2 directory and its cgroup.events; -1 = none */
    struct {
        int dir, procs; /* a version 1 directory of its own and its cgroup.procs; -1 = none */
    } v1[SLOT_LIMITS];
    int oom_event; /* eventfd of memory.oom_control, or -1 */
    bool memory_limited;
    struct keeper *keeper;      /* pidns, strict */
    struct sweep_target target; /* group */
};

#define SLOT_IDLE_MAX 64

struct yard {
    struct contain_host host;
    struct kinship *kinship;
    char name[128];             /* mandor-<worker> */
    char base[CGROUP_PATH_MAX]; /* version 2 base; "" = none */
    char limit_base[SLOT_LIMITS][CGROUP_PATH_MAX];
    int own_pidns; /* /proc/self/ns/pid, or -1 */
    pthread_mutex_t lock;
    struct list idle; /* under lock, as is its length */
    size_t idle_count;
    _Atomic int64_t next;        /* number of the next slot */
    _Atomic int64_t group_alive; /* attempts in the group rung */
};

/* Make the base containments.  Blocking. */
MUST_CHECK int yard_init(struct yard *yard, const char *worker, struct kinship *kinship,
                         struct mandor_err *err);
/* Destroy the idle slots and remove the bases.  Blocking. */
void yard_done(struct yard *yard);

/* What asked and enforced limits are, as bits. */
enum {
    LIMIT_MEMORY = 1 << 0,
    LIMIT_PIDS = 1 << 1,
    LIMIT_CPU = 1 << 2,
    LIMIT_CPU_TIME = 1 << 3,
    LIMIT_OPEN_FILES = 1 << 4,
    LIMIT_FILE_SIZE = 1 << 5,
};
unsigned limits_asked(const struct spec_limits *limits);
extern const char *const limit_names[6]; /* by bit number */

/* Lend a slot of this rung (CONTAIN_AUTO: the host's) with these limits.  ret_enforced: LIMIT_ bits that hold.
 * Returns 0, -EOPNOTSUPP (the rung, or with LIMITS_STRICT a limit, cannot be had here) or -errno.  Spawner thread. */
MUST_CHECK int slot_take(struct yard *yard, enum spec_containment rung,
                         const struct spec_limits *limits, enum spec_limits_policy policy,
                         struct slot **ret, unsigned *ret_enforced, struct mandor_err *err);
/* The containment's part of a plan.  Limits that are rlimits are in it too. */
void slot_plan(const struct slot *slot, const struct spec_limits *limits, struct spawn_plan *plan);
/* Around the clone: this thread's children are born in the slot's PID namespace.  0 or -errno.  slot_leave cannot fail but
 * by a bug (it returns to a namespace that we are in). */
MUST_CHECK int slot_enter(const struct slot *slot);
void slot_leave(const struct yard *yard, const struct slot *slot);

/* Cheap: 0 nothing is alive in it, 1 something is, -EAGAIN only slot_count() can tell.  Loop thread. */
int slot_populated(const struct slot *slot);
/* How many are alive in it, or -errno.  Killer thread. */
int slot_count(struct yard *yard, struct slot *slot);
/* One SIGTERM to each.  Killer thread.  0 or -errno. */
int slot_terminate(struct slot *slot);
/* Kill all that is in it; returns how many that were (0: it was empty, the slot is as good as before), or -errno.
 * Killer thread; the caller repeats it until slot_populated() or slot_count() is 0. */
int slot_kill(struct yard *yard, struct slot *slot);
/* Did the memory limit kill one of them?  Loop thread. */
bool slot_oom_killed(const struct slot *slot);

/* Give back an empty slot; returns NULL, or the slot when it is not fit for another attempt: slot_destroy() it on a thread
 * that may block. */
struct slot *slot_give(struct yard *yard, struct slot *slot, bool clean);
/* 0 (freed) or -EBUSY: try again later.  Blocking. */
int slot_destroy(struct yard *yard, struct slot *slot);
/* Free it without removing its directories. */
void slot_abandon(struct slot *slot);

#endif
