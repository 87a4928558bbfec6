/* sweeper.h - ends on other machines what dead attempts have left there, after the notes of sink/left.h.  Loop thread. */
#ifndef SINK_SWEEPER_H
#define SINK_SWEEPER_H

#include <uv.h>

#include "base/err.h"
#include "base/macro.h"

/* ended: what was removed; kept: what could not be, its notes stay for the next time. */
typedef void sweeper_done_fn(void *arg, int ended, int kept);

struct sweeper;

/* What a module offers as its part "sweeper". */
struct sweeper_ops {
    /* All notes of its kind in dir, one after the other.  on_done runs once, later.  0 or -errno with *err. */
    int (*start)(uv_loop_t *loop, const char *dir, sweeper_done_fn *on_done, void *arg,
                 struct sweeper **ret, struct mandor_err *err);
    /* Do not go on: on_done runs now or soon, what has not been ended keeps its notes. */
    void (*stop)(struct sweeper *sweeper);
};

/* Are there notes in dir?  Blocking, short. */
bool sweeper_wanted(const char *dir);
/* Run the one that S3 has.  *ret is for sweeper_stop(), until on_done. */
MUST_CHECK int sweeper_start(uv_loop_t *loop, const char *dir, sweeper_done_fn *on_done, void *arg,
                             struct sweeper **ret, struct mandor_err *err);
void sweeper_stop(struct sweeper *sweeper);

#endif
