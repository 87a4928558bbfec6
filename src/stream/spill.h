/* spill.h - bytes that wait on disk, first in, first out: an unlinked file.  One piece of work on the pool at a time. */
#ifndef STREAM_SPILL_H
#define STREAM_SPILL_H

#include "base/buf.h"
#include "base/err.h"
#include "loop/work.h"

#define SPILL_PIECE ((size_t)256 << 10) /* read back at once */

struct spill {
    struct work work;
    const char *dir;  /* borrowed */
    int fd;           /* -1 = not open */
    int64_t from, to; /* what waits in the file */
    struct buf out;   /* to be appended; owned by the pool while busy */
    struct buf *in;   /* read into this instead; NULL = append */
    bool busy;
    int result;
    struct mandor_err err;
    void (*after)(struct spill *spill);
};

void spill_init(struct spill *spill, const char *dir, void (*after)(struct spill *spill));
void spill_done(struct spill *spill);             /* not while busy */
int64_t spill_waiting(const struct spill *spill); /* bytes, those to be appended too */
/* Append what is in out. */
void spill_append(struct spill *spill, uv_loop_t *loop);
/* Read the oldest bytes behind those in `in`. */
void spill_read(struct spill *spill, uv_loop_t *loop, struct buf *in);

#endif
