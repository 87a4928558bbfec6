/* scratch.h - fresh directories for attempts, below one directory of this worker.  Spawner thread only.
 *
 * Making and removing an inode for each job is what ext4 does worst (it steps over every inode deleted in the last five seconds), so
 * a directory that comes back exactly as it was lent (empty, same owner and mode, no attributes) is renamed and lent again
 * under the next attempt's name.
 */
#ifndef CHILD_SCRATCH_H
#define CHILD_SCRATCH_H

#include <sys/types.h>

#include "base/macro.h"

#define SCRATCH_SPARES 64

struct scratch {
    char *dir; /* absolute */
    int fd;    /* of it */
    uint64_t device;
    unsigned next;
    unsigned spares[SCRATCH_SPARES]; /* numbers: "spare.N" */
    int spare_count;
};

/* Make `dir` and what is above it.  Takes a copy.  0 or -errno. */
MUST_CHECK int scratch_init(struct scratch *scratch, const char *dir);
void scratch_empty(struct scratch *scratch); /* removes the spares */
void scratch_done(struct scratch *scratch);  /* frees, removes nothing */

/* A directory "<dir>/<label>.<kind>" that nobody has used under this name; a name that a dead attempt left gets a number.
 * *ret: malloc'ed path.  0 or -errno. */
MUST_CHECK int scratch_take(struct scratch *scratch, const char *label, const char *kind,
                            char **ret);

/* Back from an attempt of which no process is alive.  reuse: nothing of it was killed and it ran as our own user.
 * true: it is gone (or kept as a spare); false: it holds something, tree_remove() it. */
bool scratch_give(struct scratch *scratch, const char *path, bool reuse);

#endif
