/* inspect.h - what a warm worker looks like from outside: memory of its tree, and what a job may have left behind in it.
 * Reads /proc, which may block: not on the loop thread. */
#ifndef POOL_INSPECT_H
#define POOL_INSPECT_H

#include <sys/types.h>

#include "base/macro.h"

#define INSPECT_FDS 1024 /* descriptors that are told apart */

struct inspection {
    /* Of pid and its descendants; shared pages of several processes are counted in part. */
    int64_t memory_bytes;
    size_t processes; /* descendants */
    /* Deep looks only. */
    bool deep;
    size_t fds;
    uint64_t fd_bits[INSPECT_FDS / 64];
    uint64_t env_hash;
    char cwd[256];
    char drift[200]; /* "" = as in base */
};

/* base: an earlier deep look to compare with, or NULL.  0, -ESRCH (it has gone) or -errno. */
MUST_CHECK int inspect(pid_t pid, bool deep, const struct inspection *base, struct inspection *ret);

#endif
