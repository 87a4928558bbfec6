/* keeper.h - the init process of one PID and mount namespace: it holds the namespace for the jobs that are cloned into it, adopts
 * their orphans, and takes all of them with it when it dies.  It dies with the thread that made it. */
#ifndef CHILD_KEEPER_H
#define CHILD_KEEPER_H

#include "base/err.h"
#include "base/macro.h"
#include "child/kin.h"

struct keeper {
    struct kin kin;
    int pidfd, socket; /* its own, and the control connection */
    atomic_bool dead;  /* reaped: nothing of the namespace is left */
    void *owner;       /* the child that lives in it; loop thread */
};

/* Make one and wait until its /proc is mounted.  Blocking; spawner thread.  0 or -errno. */
MUST_CHECK int keeper_new(struct kinship *kinship, struct keeper **ret, struct mandor_err *err);

/* How many processes its namespace holds beside itself (zombies too), or -errno (-ETIMEDOUT, -EPIPE: it is dead).  Blocking for
 * at most 200 ms. */
int keeper_count(struct keeper *keeper);
/* One SIGTERM to each of them, atomically.  0 or -errno. */
int keeper_terminate(struct keeper *keeper);
/* SIGKILL to the keeper and thereby to all; it is over when `dead` is set. */
int keeper_kill(struct keeper *keeper);
/* Reap it if it is dead; true when it is (now, or was before).  Any thread. */
bool keeper_reap(struct kinship *kinship, struct keeper *keeper, bool block);
/* The sentinel found pid dead and knows it for a keeper: reap it.  Returns its owner, NULL when idle.  Loop thread. */
void *keeper_reap_pid(struct kinship *kinship, pid_t pid);

/* Kill and reap (blocking), free. */
struct keeper *keeper_free(struct kinship *kinship, struct keeper *keeper);

#endif
