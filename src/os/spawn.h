/* spawn.h - one program started at the cost of vfork(2), whatever this process's size.
 *
 * Between the clone and exec(2) the child shares our memory (CLONE_VM) and runs the table in spawn.c: raw system calls only,
 * nothing allocates, locks or logs.  The caller's thread is suspended until the exec, for ever on a hung file system: call
 * it from a thread that has nothing else to do, with all signals blocked, and that lives as long as its children
 * (PR_SET_PDEATHSIG follows the thread).
 */
#ifndef OS_SPAWN_H
#define OS_SPAWN_H

#include <sys/resource.h>
#include <sys/types.h>

#include "base/macro.h"

#define SPAWN_RLIMITS_MAX 6
#define SPAWN_JOINS_MAX   4
#define SPAWN_STDIO       4 /* stdin, stdout, stderr, channel */

/* Where a start failed. */
enum spawn_step {
    SPAWN_STEP_NONE,
    SPAWN_STEP_CLONE,
    SPAWN_STEP_CGROUP,
    SPAWN_STEP_NAMESPACE,
    SPAWN_STEP_SESSION,
    SPAWN_STEP_STDIO,
    SPAWN_STEP_RLIMIT,
    SPAWN_STEP_USER,
    SPAWN_STEP_CHDIR,
    SPAWN_STEP_EXEC,
};

struct spawn_plan {
    const char *path; /* the program; relative: from cwd */
    char *const *argv, *const *envp;
    const char *cwd;
    /* What becomes descriptor 0..3, each > 3; -1 = keep 0..2 as they are, no 3. */
    int stdio[SPAWN_STDIO];
    int cgroup;                 /* version 2 directory to be born in, or -1 */
    int joins[SPAWN_JOINS_MAX]; /* open cgroup.procs files to enter */
    size_t join_count;
    int namespace_pidfd; /* pidfd whose mount namespace to enter, or -1 */
    int pid_namespace;   /* the child is in another PID namespace (its parent looks like 0) */
    struct {
        int resource;
        struct rlimit limit;
    } rlimits[SPAWN_RLIMITS_MAX];
    size_t rlimit_count;
    bool set_user; /* uid, gid and groups below */
    uid_t uid;
    gid_t gid;
    const gid_t *groups;
    size_t group_count;
    bool no_new_privs;
    int oom_score_adj; /* raised to this; 0 = leave */
    /* Bit n - 1: signal n is known not to be ignored here: 60 calls less in the child. */
    uint64_t not_ignored;
    pid_t parent; /* getpid() of the caller */
    /* The kernel writes the pid here before the child can run (CLONE_PARENT_SETTID). */
    _Atomic pid_t *newborn;
};

struct spawn_result {
    pid_t pid;
    int pidfd; /* O_CLOEXEC, owned by the caller */
    enum spawn_step step;
    int error; /* 0 or -errno */
};

/* What a spawning thread owns: the child's stack and the page in which it reports. */
struct spawner_memory;
MUST_CHECK int spawn_memory_new(struct spawner_memory **ret); /* 0 or -errno */
struct spawner_memory *spawn_memory_free(struct spawner_memory *memory);

/* Start it.  Returns 0 (pid and pidfd are the running child's) or -errno with ret->step; a child that failed before exec has
 * been reaped already. */
MUST_CHECK int spawn_process(struct spawner_memory *memory, const struct spawn_plan *plan,
                             struct spawn_result *ret);

/* Signals that this process does not ignore now, as a set for the plan. */
uint64_t spawn_not_ignored(void);
/* Whether clone3(2) is there and no filter keeps it away, as those of containers do.  Makes nothing. */
bool spawn_has_clone3(void);

/* Fork a process that goes on in fn() and never returns: fn must use raw system calls only (other threads may hold locks).
 * flags: CLONE_NEWPID and the like; signal handlers are reset, all signals are blocked in it.  ret as spawn_process(). */
MUST_CHECK int spawn_fork(uint64_t flags, int cgroup, _Atomic pid_t *newborn, void (*fn)(void *arg),
                          void *arg, struct spawn_result *ret);

/* For code that runs between clone and exec, or in a fork of a process with threads: sanitizers must not touch it. */
#if defined(__clang__)
#define CHILD_SIDE __attribute__((noinline, no_sanitize("address", "undefined", "thread")))
#else
#define CHILD_SIDE __attribute__((noinline, no_sanitize("address,undefined,thread")))
#endif

#endif
