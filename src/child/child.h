/* child.h - one supervised process tree: spawn, watch, stop, empty.  The process sentinel: it sees state changes, never bytes.
 *
 *   child_start ─▶ on_spawned ─▶ on_exited (leader reaped, verdict frozen) ─▶ [child_empty] ─▶ on_empty ─▶ child_close
 *              └─▶ on_exited with CAUSE_SPAWN ─▶ on_empty ─▶ child_close
 *
 * on_exited comes once.  on_empty comes once, after on_exited and after child_empty() was called: no process of the tree is alive,
 * zombies included, and its directories are being removed.  Loop thread only.
 */
#ifndef CHILD_CHILD_H
#define CHILD_CHILD_H

#include <jansson.h>
#include <uv.h>

#include "base/err.h"
#include "base/macro.h"
#include "child/nursery.h"
#include "job/spec.h"
#include "job/verdict.h"

struct child;

/* What to start.  Everything is borrowed until on_spawned or on_exited. */
struct child_launch {
    const char *label;        /* "<id>.<attempt>", for directories and logs; a file name */
    char *const *argv;        /* argv[0] without '/' is looked up in the job's PATH */
    char *const *envp;        /* complete; TMPDIR (and MANDOR_FD with channel) is added here */
    const char *cwd;          /* NULL = a fresh directory */
    const char *user, *group; /* NULL = unchanged */
    bool no_new_privs;
    bool want_stdin; /* a pipe; otherwise /dev/null, or inherit_stdin */
    bool inherit_stdin;
    bool want_channel; /* fd 3, job → mandor */
    int zygote_fd; /* > 0: no program, but a copy that the fork server behind this socket makes (os/zygote.h); borrowed, dup'ed.  It has all
                    * four pipes, its channel goes both ways, and argv, envp, cwd, user do not count; 0 = none */
    int channel_fd; /* > 0: this socket is fd 3 instead (borrowed, dup'ed before on_spawned); 0 = none */
    bool zygote_urgent;                  /* a job waits for this copy: it need not warm up */
    bool inherit_stdout, inherit_stderr; /* no pipe: the caller's own descriptor */
    /* >= 0: give this descriptor (borrowed, dup'ed before on_spawned); -1 = a pipe. */
    int stdout_fd, stderr_fd;
    struct spec_limits limits;
    enum spec_limits_policy limits_policy;
    enum spec_containment containment;
};

/* mandor's ends of the pipes, consumed by the owner in on_spawned; -1 = none. */
struct child_pipes {
    int in, out, err, channel;
};

struct child_events {
    void (*on_spawned)(struct child *child, pid_t pid, const struct child_pipes *adopt, void *arg);
    void (*on_exited)(struct child *child, const struct verdict *verdict, void *arg);
    void (*on_empty)(struct child *child, void *arg);
    /* The tree could not be killed (uninterruptible) for a second; on_empty may still come.  May be NULL.  This one may come from
     * inside child_stop() or child_empty(). */
    void (*on_kill_pending)(struct child *child, void *arg);
};

/* Returns 0 (on_exited will come, never from inside) or -ENOMEM. */
MUST_CHECK int child_start(struct nursery *nursery, const struct child_launch *launch,
                           const struct child_events *events, void *arg, struct child **ret);

/* Stop the tree: one SIGTERM to each of its processes, SIGKILL after grace_ms (0 = at once) if it is not empty by then.
 * cause goes into the verdict: what mandor did decides first.  The first cause wins; a later call can only shorten the grace.
 * Before on_spawned it is remembered.  After on_exited it still hastens the tree's end. */
void child_stop(struct child *child, enum cause cause, int64_t grace_ms);

/* A copy of a fork server has bounded its own processor time: what ends it for that is the limit's doing. */
void child_note_cpu_time(struct child *child, int64_t cpu_time_ms);

/* Stop (SIGSTOP) or continue (SIGCONT) the leader's process group, for a terminal's ^Z.  Nothing before on_spawned or after on_exited: the
 * number could be a stranger's (R18). */
void child_suspend(struct child *child, bool on);

/* The owner has what it wants of the tree (drain is over): let what a stop began run out its grace, kill the rest, on_empty. */
void child_empty(struct child *child);

/* After on_empty.  Frees at once. */
void child_close(struct child *child);

pid_t child_pid(const struct child *child);        /* 0 before on_spawned */
const char *child_slot(const struct child *child); /* the containment's name for BROKER_PHASE */
enum spec_containment child_containment(const struct child *child); /* the rung in force */
/* {"memory": true, "cpu": false}; NULL = no limits; new reference. */
json_t *child_limits_enforced(const struct child *child);
int64_t child_descendants_killed(const struct child *child); /* final after on_empty */

#endif
