/* streams_sweep.c - files of output outlive their job: whoever removes it may sit on another machine.  So each worker looks from time to time
 * which of the directories in <data_dir>/output are of no job any more. */
#include <dirent.h>
#include <stdio.h>

#include "base/clock.h"
#include "broker/data_dir.h"
#include "broker/lua_scripts.h"
#include "broker/streams.h"
#include "loop/work.h"

#define SWEEP_MS  60000
#define SWEEP_MAX 256 /* directories looked at in one go */

struct sweep {
    struct streams *s;
    struct work work;
    char (*ids)[24];
    size_t count;
    unsigned skip; /* so many are passed over: all come in their turn */
};

static void finish(struct sweep *sweep)
{
    struct streams *s = sweep->s;

    free(sweep->ids);
    free(sweep);
    s->sweeping = false;
    streams_part_done(s);
}

static bool is_id(const char *name)
{
    size_t len = strlen(name);
    return len > 0 && len < 20 && strspn(name, "0123456789") == len;
}

/* On a pool thread. */
static void look(struct work *work)
{
    struct sweep *sweep = CONTAINER_OF(work, struct sweep, work);
    char path[PATH_MAX];
    size_t seen = 0;

    (void)snprintf(path, sizeof path, "%s/output", broker_data_dir(sweep->s->broker));
    DIR *dir = opendir(path);
    if (dir == NULL)
        return;
    for (struct dirent *entry; (entry = readdir(dir)) != NULL && sweep->count < SWEEP_MAX;)
        if (is_id(entry->d_name) && seen++ >= sweep->skip)
            (void)snprintf(sweep->ids[sweep->count++], sizeof *sweep->ids, "%s", entry->d_name);
    (void)closedir(dir);
}

static void remove_all(struct work *work)
{
    struct sweep *sweep = CONTAINER_OF(work, struct sweep, work);

    for (size_t i = 0; i < sweep->count; i++)
        data_dir_remove_output(broker_data_dir(sweep->s->broker), sweep->ids[i]);
}

static void on_removed(struct work *work)
{
    finish(CONTAINER_OF(work, struct sweep, work));
}

static void on_gone(void *arg, int result, const redisReply *reply, const struct mandor_err *err)
{
    struct sweep *sweep = arg;

    (void)err; /* the next sweep asks again */
    sweep->count = 0;
    for (size_t i = 0; result == 0 && reply_at(reply, i) != NULL && i < SWEEP_MAX; i++)
        (void)snprintf(sweep->ids[sweep->count++], sizeof *sweep->ids, "%s",
                       reply_text(reply_at(reply, i)));
    if (sweep->count == 0) {
        finish(sweep);
        return;
    }
    work_submit(broker_loop(sweep->s->broker), &sweep->work, WORK_UNKNOWN, remove_all, on_removed);
}

static void on_looked(struct work *work)
{
    struct sweep *sweep = CONTAINER_OF(work, struct sweep, work);
    struct args args = { .count = 0 };

    sweep->s->sweep_skip = sweep->count == SWEEP_MAX ? sweep->skip + SWEEP_MAX : 0;
    if (sweep->count == 0) {
        finish(sweep);
        return;
    }
    for (size_t i = 0; i < sweep->count; i++)
        args_copy(&args, sweep->ids[i]);
    streams_eval(sweep->s, &lua_streams_gone, REDIS_AGAIN, STREAMS_CALL_MS, &args, on_gone, sweep);
}

void streams_sweep(struct streams *s)
{
    if (s->sweeping || s->closing || clock_mono_ms() - s->swept_ms < SWEEP_MS)
        return;

    struct sweep *sweep = calloc(1, sizeof *sweep);
    if (sweep == NULL)
        return;
    *sweep = (struct sweep){ .s = s, .skip = s->sweep_skip };
    sweep->ids = calloc(SWEEP_MAX, sizeof *sweep->ids);
    if (sweep->ids == NULL) {
        free(sweep);
        return;
    }
    s->swept_ms = clock_mono_ms();
    s->sweeping = true;
    s->outstanding++;
    work_submit(broker_loop(s->broker), &sweep->work, WORK_UNKNOWN, look, on_looked);
}
