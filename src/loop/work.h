/* work.h - blocking work on libuv's thread pool, with a limit for each device.
 *
 * The pool has four threads.  A hung disk must not take them all, or every other job's output stops with it: at most
 * WORK_DEVICE_MAX pieces of work for one device run at once, the rest waits in line here (first come, first served).
 * Submit on the loop thread; several loops in one process are separate.
 */
#ifndef LOOP_WORK_H
#define LOOP_WORK_H

#include <uv.h>

#include "base/list.h"
#include "base/macro.h"

#define WORK_DEVICE_MAX 2 /* threads for any one device */

/* What to pass as device where st_dev is not the answer. */
#define WORK_UNLIMITED UINT64_MAX /* no device: may take any thread */
/* A path whose device is not known yet: one at a time, any could hang. */
#define WORK_UNKNOWN   (UINT64_MAX - 1)
#define WORK_CPU       (UINT64_MAX - 2) /* long computing without a device */

struct work;
typedef void work_fn(struct work *work);

/* Embedded in the object that waits; its memory stays until after() was called. */
struct work {
    uv_work_t req;
    uv_loop_t *loop;
    struct list node;
    struct work_line *line;
    work_fn *run;   /* on a pool thread */
    work_fn *after; /* on the loop thread; may submit again or free */
};

/* Run run(work) on a pool thread, then after(work) on the loop thread: exactly once, never from inside this call. */
void work_submit(uv_loop_t *loop, struct work *work, uint64_t device, work_fn *run, work_fn *after);
/* Is there a thread to spare for this device: does nobody wait, and would not even if one more thread were taken? */
bool work_free(uv_loop_t *loop, uint64_t device);

#endif
