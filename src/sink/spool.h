/* spool.h - a tempfile driven from the loop: each step is one piece of work on the pool and one sink_answer().
 * Shared by file: and auto:, embedded in their state. */
#ifndef SINK_SPOOL_H
#define SINK_SPOOL_H

#include "loop/work.h"
#include "sink/sink_ops.h"
#include "sink/tempfile.h"

enum spool_step {
    SPOOL_OPEN = 1,
    SPOOL_WRITE = 2,
    SPOOL_PREPARE = 4,
    SPOOL_COMMIT = 8,
    SPOOL_ABORT = 16
};

struct spool {
    struct work work;
    struct sink *sink;
    struct tempfile file;
    char *known_dir; /* whose device is likely the file's: the directory, or the data directory */
    unsigned steps;
    struct iovec head; /* written before iov, not hashed: it was already */
    const struct iovec *iov;
    int count;
    XXH3_state_t *hash;
    int result;
    struct mandor_err err;
    void (*after)(struct spool *spool); /* instead of sink_answer() when not NULL */
};

/* known_dir: copied.  0 or -ENOMEM. */
MUST_CHECK int spool_init(struct spool *spool, struct sink *sink, const struct sink_target *target,
                          const char *path, const char *known_dir);
void spool_done(struct spool *spool);
/* Run the steps (enum spool_step, or'ed) in order until one fails, then answer.  The fields that they use are set before. */
void spool_run(struct spool *spool, unsigned steps);

#endif
