/* zygote.h - ask a fork server (zygote/) for a copy of itself, which becomes a child of this process. */
#ifndef OS_ZYGOTE_H
#define OS_ZYGOTE_H

#include <sys/types.h>

#include "base/macro.h"
#include "os/zygote_wire.h"

/* fds: as many as the request says, borrowed.  Waits for the answer, at most timeout_ms.
 * Returns 0 with *ret_pid (0: it has ended, and was reaped by somebody else) and *ret_pidfd (the caller's); -ETIMEDOUT, -EPIPE (the server has gone),
 * -EPROTO, or what the server says. */
MUST_CHECK int os_zygote_fork(int control_fd, const struct zygote_request *request, const int *fds,
                              size_t fd_count, int timeout_ms, pid_t *ret_pid, int *ret_pidfd);

/* Does this kernel filter system calls (seccomp)?  0 or -errno. */
MUST_CHECK int os_seccomp_probe(void);

#endif
