/* leftovers.c - contract in leftovers.h. */
#include "worker/leftovers.h"

#include <stdatomic.h>

#include "base/clock.h"
#include "base/log.h"
#include "loop/work.h"
#include "sink/left.h"
#include "sink/sweeper.h"

#define AGAIN_MS INT64_C(60000)

/* One worker a process. */
static struct {
    struct worker *worker;
    struct work work;
    bool busy, wanted;
    atomic_bool soon;
    int64_t next_ms;
} leftovers = { .soon = true };

static void on_swept(void *arg, int ended, int kept)
{
    leftovers.busy = false;
    if (ended > 0)
        log_info("ended %d upload%s that dead attempts had left", ended, ended == 1 ? "" : "s");
    if (kept > 0)
        log_warn("%d upload%s of dead attempts could not be ended yet", kept, kept == 1 ? "" : "s");
}

static void run_look(struct work *work)
{
    SCOPED_FREE char *dir = left_dir(leftovers.worker->setup.data_dir);

    leftovers.wanted = dir != NULL && sweeper_wanted(dir);
}

static void after_look(struct work *work)
{
    SCOPED_FREE char *dir = left_dir(leftovers.worker->setup.data_dir);
    struct sweeper *unused;
    struct mandor_err err;

    leftovers.busy = false;
    if (!leftovers.wanted || dir == NULL || leftovers.worker->closing)
        return;
    if (sweeper_start(&leftovers.worker->loop, dir, on_swept, NULL, &unused, &err) < 0)
        log_warn("uploads of dead attempts in '%s' cannot be ended: %s", dir, err.msg);
    else
        leftovers.busy = true;
}

void leftovers_sweep(struct worker *worker)
{
    int64_t now = clock_mono_ms();

    if (leftovers.busy || worker->closing ||
        (now < leftovers.next_ms && !atomic_load(&leftovers.soon)))
        return;
    atomic_store(&leftovers.soon, false);
    leftovers.worker = worker;
    leftovers.next_ms = now + AGAIN_MS;
    leftovers.busy = true;
    work_submit(&worker->loop, &leftovers.work, WORK_UNKNOWN, run_look, after_look);
}

void leftovers_take(struct worker *worker, const char *journal_dir)
{
    SCOPED_FREE char *dir = left_dir(worker->setup.data_dir);
    struct mandor_err err;

    int r = dir == NULL ? -ENOMEM : left_hand_over_all(journal_dir, dir, &err);
    if (r < 0)
        log_warn("sweep '%s': %s", journal_dir, dir == NULL ? "out of memory" : err.msg);
    if (r > 0)
        atomic_store(&leftovers.soon, true);
}
