/* fork.h - the fork server's loop, and how a copy becomes a process of its own.  Knows nothing of Node.
 *
 *   fork_prepare ─▶ fork_serve ══ never returns in the server; once in each copy ══▶ copy: fork_settle
 *
 * After fork_prepare() the server must not run a single JavaScript instruction any more: V8 writes into memory that copies
 * share until then, and a copy that was made between two of its writes hangs. */
#ifndef ZYGOTE_FORK_H
#define ZYGOTE_FORK_H

#include <stddef.h>
#include <stdint.h>

#include "os/zygote_wire.h"

#define FORK_FDS_MAX 256

/* What the server has open before the first copy: Node's own. */
struct fork_fds {
    int fd[FORK_FDS_MAX];
    size_t count;
};

struct fork_copy {
    struct zygote_request request;
    int fds[ZYGOTE_FDS_MAX]; /* as in zygote_wire.h; -1 = none */
};

/* V8 marks its heap MADV_DONTFORK, and a copy without it dies at its first instruction: take that back for every mapping that has
 * it, and leave out what is shared and can be written.  Returns how many mappings go along now, or -errno. */
int fork_prepare(void);

/* Serve until the socket ends (then the process exits).  Returns 0 in a copy, with *ret; -errno when serving is impossible. */
int fork_serve(int control_fd, struct fork_copy *ret);

/* In a copy: descriptors 0 to 3, session, user without rights, death with the worker.  0 or -errno with *ret_step. */
int fork_settle(struct fork_copy *copy, const char **ret_step);

/* What is open now, from 4 on.  0 or -errno. */
int fork_list_fds(struct fork_fds *ret);

/* Bytes of private writable memory of this process (VmData), or -errno. */
int64_t fork_data_bytes(void);

#endif
