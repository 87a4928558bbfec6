/* nursery.h - what all children of a process share: the spawner thread, the sentinel, the containments, the scratch
 * directories and the link to the guard.  One a process (libmandor: one a uv loop).  Loop thread only. */
#ifndef CHILD_NURSERY_H
#define CHILD_NURSERY_H

#include <uv.h>

#include "base/err.h"
#include "base/macro.h"
#include "child/contain.h"

struct nursery;

struct nursery_options {
    const char *name; /* worker's name: cgroup base is <own cgroup>/mandor-<name>/ */
    /* Fresh TMPDIR and working directories are made in <scratch_dir>/<name>/, which is made when absent and removed in the end. */
    const char *scratch_dir;
    /* scratch_dir is there, empty, and all ours: no directory of our name in it, and the caller removes it. */
    bool own_scratch;
    /* This process is a subreaper and owns SIGCHLD: reap adopted processes (I1).  libmandor: false. */
    bool adopt_orphans;
    int guard_fd; /* link to the guard (guard.h), -1 = none */
    /* The guard has died: everything contained was killed, exit now (125).  NULL without a guard. */
    void (*on_guard_lost)(void *arg);
    void *arg;
};

/* Probes the host, makes the base containments, starts the threads.  Blocking.  Returns 0 or -errno with *err; what was made before a
 * failure goes in the loop's next turn. */
MUST_CHECK int nursery_new(uv_loop_t *loop, const struct nursery_options *options,
                           struct nursery **ret, struct mandor_err *err);
/* What the probe found. */
const struct contain_host *nursery_host(const struct nursery *nursery);

/* Text for BROKER_REGISTER: the base containments, for nursery_empty_dead() of a successor. */
const char *nursery_base_text(const struct nursery *nursery);

/* No child may be left.  Removes slots, base containments and scratch; on_closed runs last. */
void nursery_close(struct nursery *nursery, void (*on_closed)(void *arg), void *arg);

/* Kill everything in a dead worker's base containment (text of nursery_base_text()) and remove it, its scratch too.
 * Blocking and idempotent.  Any thread.  0 = empty and gone, -EAGAIN = something is still alive, or -errno. */
MUST_CHECK int nursery_empty_dead(const char *base_text, struct mandor_err *err);

#endif
