/* feeder.h - the other direction: a job's stdin from `file:PATH`, `inline:TEXT`, or another machine (source.h), with backpressure (R42, R114).
 * At most one chunk (64 KiB) is in memory.  A job that closes its stdin early is no error.  Loop thread only; file reads run on
 * uv's pool. */
#ifndef STREAM_FEEDER_H
#define STREAM_FEEDER_H

#include <uv.h>

#include "base/err.h"
#include "base/macro.h"

struct feeder;

/* Is url of a known stdin scheme and well-formed?  No I/O. */
MUST_CHECK int feeder_check_url(const char *url, struct mandor_err *err);

/* Feed pipe_fd (consumed whatever the result; made O_NONBLOCK) from url.  on_end runs once: 0, or -errno when the source could
 * not be opened or read.  The pipe is closed by then. */
MUST_CHECK int feeder_start(uv_loop_t *loop, const char *url, int adopt_pipe_fd,
                            void (*on_end)(void *arg, int result, const struct mandor_err *err),
                            void *arg, struct feeder **ret, struct mandor_err *err);
/* Stop (no on_end after this) and free.  Any time. */
void feeder_close(struct feeder *feeder);

#endif
