/* capture.h - the last bytes of a stream, for the job's record and for who begins to follow.  Loop thread only.
 * Memory grows with what there is to keep, up to `max`; a stream that writes nothing costs nothing. */
#ifndef STREAM_CAPTURE_H
#define STREAM_CAPTURE_H

#include "base/macro.h"

struct capture {
    unsigned char *bytes;
    size_t max;   /* bytes to keep */
    size_t cap;   /* allocated */
    size_t start; /* index of the oldest byte; 0 until the ring is at max and full */
    size_t len;
};

/* max: bytes that are kept, the last ones; memory is taken as they come. */
void capture_init(struct capture *capture, size_t max);
void capture_done(struct capture *capture);
/* Append.  Out of memory: keeps what fits and goes on; a tail is worth less than the job. */
void capture_add(struct capture *capture, const void *bytes, size_t len);
/* What is kept, oldest first, in one piece; valid until the next capture_add(). */
const void *capture_bytes(struct capture *capture, size_t *ret_len);

#endif
