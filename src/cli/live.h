/* live.h - a client of a worker's live socket (worker/live_frame.h): send one line, then read frames.
 *
 * Blocking with a time limit.  Main thread.
 */
#ifndef CLI_LIVE_H
#define CLI_LIVE_H

#include "base/err.h"
#include "base/macro.h"
#include "worker/live_frame.h"

struct live_frame {
    enum live_kind kind;
    const char *bytes; /* until the next call */
    size_t len;
};

struct live;

/* Connect to worker and send line (which ends in a newline).  -ENOENT or -ECONNREFUSED: nobody is there. */
MUST_CHECK int live_open(const char *data_dir, const char *worker, const char *line,
                         struct live **ret, struct mandor_err *err);
struct live *live_close(struct live *live); /* NULL is a no-op; returns NULL */
DEFINE_CLEANUP(struct live *, live_close)

/* The next frame.  Returns 1; 0 when none came within timeout_ms (-1: for ever); -EPIPE when the worker hung up; -EPROTO. */
MUST_CHECK int live_read(struct live *live, int timeout_ms, struct live_frame *ret);
int live_fd(const struct live *live); /* to poll */

/* Names of the workers that have a live socket, for words_free(); NULL without memory. */
char **live_workers(const char *data_dir);

#endif
