/* pump.h - one time slice of a busy stream on a pool thread: read, frame, hash and write in a tight loop, or splice(2).
 *
 * A stream that floods is moved by the pool, not by the loop: the loop stays free (I6) and the bytes stay in one core's
 * cache from the read to the write.  A slice ends after PUMP_SLICE_NS, or when the pipe is empty, so that streams take turns.
 * Reads never block (the pipe is O_NONBLOCK).  Knows nothing of filter or sink: they lend it descriptors and memory.
 */
#ifndef STREAM_PUMP_H
#define STREAM_PUMP_H

#include <stdatomic.h>
#include <xxhash.h>

#include "base/err.h"
#include "base/macro.h"
#include "stream/framer.h"

#define PUMP_SLICE_NS ((int64_t)5000000)
/* A reader that is faster than the writer would be woken for each small write, and both would do little but switch.  A nap
 * lets the pipe fill: measured with head(1) on two cores, that halves the processor time a byte. */
#define PUMP_NAP_NS   ((long)100000)
#define PUMP_NOWHERE  (-2) /* as `to`: read and count only */

enum pump_end {
    PUMP_MORE,  /* the slice is over, there may be more */
    PUMP_EMPTY, /* the pipe is empty for now */
    PUMP_EOF,   /* no writer is left */
    PUMP_OVER,  /* keep_max was reached and discard is off */
    PUMP_FRAME, /* the framer found an error */
    PUMP_READ_FAILED,
    PUMP_WRITE_FAILED,
    PUMP_NO_SPLICE, /* this descriptor does not take part in splice(2): nothing was moved */
};

struct pump {
    /* Set before the slice. */
    int from, to;
    bool splice;
    XXH3_state_t *hash;    /* NULL = none */
    struct framer *framer; /* NULL = raw */
    unsigned char *memory; /* not used by splice */
    size_t memory_len;
    /* Bytes that may still be written; what comes after them is read and dropped. */
    int64_t keep_max;
    bool discard;
    bool tail_wanted;
    /* Nobody waits for this thread: an empty pipe may be waited for, PUMP_NAP_NS at a time. */
    bool patient;
    atomic_bool stop; /* end soon */
    /* Results. */
    enum pump_end end;
    int error;           /* -errno of the failed call */
    int64_t bytes, kept; /* read; written (or would have been, PUMP_NOWHERE) */
    /* The last bytes that were read, oldest first, as many as memory still has: at least min(bytes, memory_len / 2). */
    struct tail_piece {
        const unsigned char *bytes;
        size_t len;
    } tail[2];
};

/* Run one slice.  Any thread. */
void pump_slice(struct pump *pump);

#endif
