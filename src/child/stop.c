/* stop.c - the ladder by which a tree is brought down.
 *
 *   FLOOR ──stop, grace──▶ TERM ──one SIGTERM each──▶ GRACE ──time is up──▶ KILL ──again and again──▶ empty
 *     └──────────stop without grace, or the owner wants it empty────────────▲
 *
 * child_pulse() looks at what is known and does the next thing; whoever learns something new calls it.  What may block (listing
 * processes, freezing, /proc) runs on the killer thread, one operation at a time for each child.
 */
#include <signal.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/metrics.h"
#include "child/child_int.h"
#include "os/pidfd.h"

#define WAIT_FIRST_MS     1
#define WAIT_MAX_MS       50
#define WAIT_PENDING_MS   100 /* for what does not die */
#define PENDING_AFTER_MS  1000
#define START_PATIENCE_MS 500 /* after the grace, for what has not reached exec */

static bool leader_reaped(const struct child *child)
{
    return child->state == CHILD_EXITED || child->state == CHILD_EMPTYING;
}

static bool has_tree(const struct child *child)
{
    return child->state == CHILD_RUNNING || leader_reaped(child);
}

static void on_timer(uv_timer_t *timer)
{
    struct child *child = timer->data;
    OBJ_CHECK(child, CHILD_MAGIC);
    if (child_unwatched(child))
        child_reap(child);
    child_pulse(child);
}

static void look_again_in(struct child *child, int64_t ms)
{
    (void)uv_timer_start(&child->timer, on_timer, (uint64_t)MAX(ms, (int64_t)0), 0);
}

/* The next look: soon at first, since waiting for cgroup.events' notification costs 15 ms, then ever less often. */
static void look_again_later(struct child *child, int64_t at_most_ms)
{
    bool pending =
        child->kill_began_at_ms > 0 && clock_mono_ms() - child->kill_began_at_ms > PENDING_AFTER_MS;
    look_again_in(child, MIN((int64_t)child->wait_ms, at_most_ms));
    child->wait_ms = MIN(child->wait_ms * 2, pending ? WAIT_PENDING_MS : WAIT_MAX_MS);
}

static void tree_is_empty(struct child *child)
{
    (void)uv_timer_stop(&child->timer);
    if (child->oom_watched)
        (void)uv_poll_stop(&child->oom_watch);
    child->tree_empty = true;
    child->nursery->alive--;
    child_move(child, CHILD_TREE_EMPTY);
    if (child->descendants_killed > 0)
        metric_add(METRIC_descendants_killed, child->descendants_killed);
    nursery_tidy(child->nursery, child);
    if (child->state == CHILD_DUE)
        nursery_due(child->nursery, child);
}

/* ---- operations on the killer thread ---- */

static void stop_run(struct lane_task *task)
{
    struct child *child = CONTAINER_OF(task, struct child, stop_task);
    struct yard *yard = &child->nursery->yard;
    child->op_result = child->op == OP_TERMINATE ? slot_terminate(child->slot)
                       : child->op == OP_KILL    ? slot_kill(yard, child->slot)
                                                 : slot_count(yard, child->slot);
}

static void killed_some(struct child *child, int count, bool leader_was_alive)
{
    if (!child->killed)
        child->descendants_killed = MAX(count - (leader_was_alive ? 1 : 0), 0);
    child->killed = true;
}

static void stop_done(struct lane_task *task)
{
    struct child *child = CONTAINER_OF(task, struct child, stop_task);
    OBJ_CHECK(child, CHILD_MAGIC);
    child->stop_busy = false;
    bool began_reaped = child->op_began_reaped;
    if (child->op_result < 0)
        log_debug("child", "child %s: stop operation %d: %s", child->label, (int)child->op,
                  strerror(-child->op_result));

    if (child->op == OP_KILL && child->op_result != 0 && child->op_result != -EAGAIN)
        killed_some(child, child->op_result, !began_reaped);
    if (child->op != OP_TERMINATE && child->op_result == 0 && began_reaped) {
        tree_is_empty(child);
        return;
    }
    child->look_at_ms = child->op == OP_TERMINATE ? 0 : clock_mono_ms() + child->wait_ms;
    child_pulse(child);
}

static void operate(struct child *child, enum stop_op op)
{
    child->op = op;
    child->op_began_reaped = leader_reaped(child);
    child->stop_busy = true;
    lane_push(child->nursery->killer, &child->stop_task);
}

/* ---- the ladder ---- */

static void tell_pending(struct child *child, int64_t now)
{
    if (child->pending_told || now - child->kill_began_at_ms < PENDING_AFTER_MS)
        return;
    child->pending_told = true;
    if (child->events->on_kill_pending != NULL)
        child->events->on_kill_pending(child, child->arg);
}

static void step_kill(struct child *child, int64_t now)
{
    if (child->kill_began_at_ms == 0) {
        child->kill_began_at_ms = now;
        child->wait_ms = WAIT_FIRST_MS;
        child->look_at_ms = 0;
    }
    tell_pending(child, now);
    if (now >= child->look_at_ms)
        operate(child, OP_KILL);
    else
        look_again_later(child, INT64_MAX);
}

static void step_grace(struct child *child, int64_t now)
{
    bool must_ask = leader_reaped(child) && slot_populated(child->slot) == -EAGAIN;
    if (must_ask && now >= child->look_at_ms)
        operate(child, OP_COUNT);
    else if (leader_reaped(child))
        look_again_later(child, child->kill_at_ms - now);
    else
        look_again_in(child, child->kill_at_ms - now); /* SIGCHLD tells of the leader */
}

static void climb(struct child *child)
{
    int64_t now = clock_mono_ms();
    if (child->ladder == LADDER_FLOOR)
        child->ladder = child->stop_asked && child->kill_at_ms > now ? LADDER_TERM : LADDER_KILL;
    if ((child->ladder == LADDER_GRACE || child->ladder == LADDER_TERM) && now >= child->kill_at_ms)
        child->ladder = LADDER_KILL;

    switch (child->ladder) {
    case LADDER_TERM:
        child->ladder = LADDER_GRACE;
        operate(child, OP_TERMINATE);
        break;
    case LADDER_GRACE:
        step_grace(child, now);
        break;
    default:
        step_kill(child, now);
    }
}

/* A start that hangs before exec (a directory on a dead server) holds up the spawner and every start behind it.  Its process has
 * no pidfd of ours yet; the number is certain as long as this very launch is under way before and after it is opened. */
static void break_start(struct child *child, int64_t now)
{
    struct nursery *nursery = child->nursery;
    if (now < child->kill_at_ms + START_PATIENCE_MS) {
        look_again_in(child, child->kill_at_ms + START_PATIENCE_MS - now);
        return;
    }
    if (child->kill_began_at_ms == 0)
        child->kill_began_at_ms = now;
    tell_pending(child, now);
    pid_t pid = atomic_load(&nursery->kinship.newborn);
    if (atomic_load(&nursery->launching) == child && pid > 0) {
        SCOPED_FD fd = os_pidfd_open(pid);
        if (fd >= 0 && atomic_load(&nursery->launching) == child &&
            atomic_load(&nursery->kinship.newborn) == pid)
            (void)os_pidfd_signal(fd, SIGKILL);
    }
    look_again_later(child, INT64_MAX);
}

void child_pulse(struct child *child)
{
    if (child->state == CHILD_STARTING && child->stop_asked && list_empty(&child->due))
        break_start(child, clock_mono_ms());
    if (child->stop_busy || !has_tree(child))
        return;
    if (leader_reaped(child) && slot_populated(child->slot) == 0)
        tree_is_empty(child);
    else if (child->stop_asked || child->empty_asked)
        climb(child);
}

void stop_init(struct child *child)
{
    (void)uv_timer_init(child->nursery->loop, &child->timer);
    child->timer.data = child;
    child->open_handles++;
    child->wait_ms = WAIT_FIRST_MS;
    child->stop_task = (struct lane_task){ .run = stop_run, .done = stop_done };
    child->kill_at_ms = INT64_MAX;
}

/* A start that has not begun never happens; it is reported from the loop's turn. */
static void give_up_start(struct child *child)
{
    if (!list_empty(&child->due) || !lane_cancel(child->nursery->spawner, &child->launch_task))
        return;
    child_refuse(child, STAGE_NONE, -ECANCELED, "ended before it was started");
}

void child_stop(struct child *child, enum cause cause, int64_t grace_ms)
{
    OBJ_CHECK(child, CHILD_MAGIC);
    if (child->tree_empty)
        return;
    if (!child->stop_asked)
        child->stop_cause = cause;
    child->stop_asked = true;
    child->kill_at_ms = MIN(child->kill_at_ms, clock_mono_ms() + MAX(grace_ms, (int64_t)0));
    if (child->state == CHILD_STARTING)
        give_up_start(child);
    child_pulse(child);
}
