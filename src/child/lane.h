/* lane.h - a thread that does one blocking thing after another for the loop.
 *
 *   loop: lane_push(task) ──▶ thread: task->run ──▶ loop: task->done
 *
 * A nursery has two: the spawner (a clone blocks until exec, and PR_SET_PDEATHSIG wants a thread that stays) and the
 * killer, which must never wait behind a spawn that hangs.  All functions but run() belong to the loop thread.
 */
#ifndef CHILD_LANE_H
#define CHILD_LANE_H

#include <uv.h>

#include "base/list.h"
#include "base/macro.h"

struct lane;

struct lane_task {
    struct list node;
    void (*run)(struct lane_task *task);  /* on the lane's thread */
    void (*done)(struct lane_task *task); /* on the loop; may free the task */
    /* done() can wait until the loop wakes up for something else; run() may still change it. */
    bool quiet;
};

/* answers: sent when a task is done; its callback calls lane_drain().  One async may serve several lanes.
 * Returns 0 or -errno. */
MUST_CHECK int lane_new(const char *name, uv_async_t *answers, struct lane **ret);

/* Put a task behind the others; it is the lane's until its done() was called. */
void lane_push(struct lane *lane, struct lane_task *task);
/* Take a task back that was not begun.  true: neither run nor done will be called. */
bool lane_cancel(struct lane *lane, struct lane_task *task);
/* Call done() of everything that is done; returns how many. */
int lane_drain(struct lane *lane);

/* Finish what is queued, end the thread, join it (blocking), call the remaining done()s. */
struct lane *lane_free(struct lane *lane);

#endif
