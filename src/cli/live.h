/* live.h - a worker's live socket, <data_dir>/run/<worker>.live: who connects sends one line and then reads frames.
 *
 *     u8 kind │ u32 little-endian length │ payload
 *
 * Blocking with a time limit.  Main thread.
 */
#ifndef CLI_LIVE_H
#define CLI_LIVE_H

#include "base/err.h"
#include "base/macro.h"

enum live_kind {
    LIVE_STDOUT = 1, /* bytes of the job */
    LIVE_STDERR = 2,
    LIVE_NOTICE = 3,   /* text for people: "[… 4096 bytes skipped]" */
    LIVE_ENDED = 4,    /* the attempt is over: {"id", "attempt", "state", …} */
    LIVE_SNAPSHOT = 5, /* {"worker", "running", "metrics", …} */
};

#define LIVE_PAYLOAD_MAX ((size_t)16 << 20) /* bytes */

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

/* Names of the workers that have a live socket, malloc'ed and NULL-terminated; NULL without memory. */
char **live_workers(const char *data_dir);
void live_workers_free(char **names);

#endif
