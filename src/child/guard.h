/* guard.h - the tiny process above the worker.  `mandor work` and `mandor run` start as the guard: a subreaper that forks the worker
 * before any thread exists, relays signals and mirrors its exit code.  Whichever of the two dies, the other empties everything that is
 * registered and all that it adopted. */
#ifndef CHILD_GUARD_H
#define CHILD_GUARD_H

#include "base/err.h"
#include "base/macro.h"

/* Fork; the child returns 0 with *ret_guard_fd (its link, O_CLOEXEC) and is a subreaper; the parent never returns: it relays
 * SIGINT SIGTERM SIGHUP SIGQUIT SIGUSR1 SIGUSR2 SIGTSTP/SIGCONT, and exits as the worker did.  Descriptors that are open now (the liveness lock
 * taken before) stay open in the guard until it has emptied all containments.
 * What is relayed waits in the child for guard_listen().
 * Returns -errno when fork, socketpair or prctl failed.  Must be called before the first thread. */
MUST_CHECK int guard_fork(int *ret_guard_fd, struct mandor_err *err);

/* Before guard_fork(), where what is made for it must not be left: what it relays waits from now on. */
void guard_hold(void);

/* In the worker, when it has its handlers: signals are taken from now on, those that came meanwhile first.  A start that is told to stop
 * leaves nothing half made. */
void guard_listen(void);

/* Tell the guard of a containment before anything is cloned into it (and when it is gone).  text: nursery base text or a keeper.
 * Blocking only when the guard is hopelessly behind.  0 or -errno (-EPIPE: guard gone). */
MUST_CHECK int guard_register(int guard_fd, const char *text);
MUST_CHECK int guard_unregister(int guard_fd, const char *text);

#endif
