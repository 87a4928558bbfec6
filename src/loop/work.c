/* work.c - contract in work.h.
 *
 * A line exists for each (loop, device) that has work.  The table of lines is the only thing that loops share, hence the
 * mutex; what is inside a line belongs to its loop's thread.
 */
#include "loop/work.h"

#include <pthread.h>

struct work_line {
    struct list node;
    uv_loop_t *loop;
    uint64_t device;
    unsigned running, limit;
    struct list waiting;
};

static struct list lines = LIST_INIT(lines);
static pthread_mutex_t lines_lock = PTHREAD_MUTEX_INITIALIZER;

static struct work_line *line_find(uv_loop_t *loop, uint64_t device)
{
    LIST_FOREACH(line, &lines, struct work_line, node) {
        if (line->loop == loop && line->device == device)
            return line;
    }
    return NULL;
}

/* The line of this device, made when there is none.  NULL when out of memory: such work runs without a limit. */
static struct work_line *line_get(uv_loop_t *loop, uint64_t device)
{
    pthread_mutex_lock(&lines_lock);
    struct work_line *found = line_find(loop, device);
    if (found == NULL && (found = calloc(1, sizeof *found)) != NULL) {
        found->loop = loop;
        found->device = device;
        found->limit = device == WORK_UNKNOWN ? 1 : WORK_DEVICE_MAX;
        list_init(&found->waiting);
        list_push_front(&lines, &found->node);
    }
    pthread_mutex_unlock(&lines_lock);
    return found;
}

static void line_drop(struct work_line *line)
{
    pthread_mutex_lock(&lines_lock);
    list_remove(&line->node);
    pthread_mutex_unlock(&lines_lock);
    free(line);
}

static void on_run(uv_work_t *req)
{
    struct work *work = CONTAINER_OF(req, struct work, req);

    work->run(work);
}

static void on_after(uv_work_t *req, int status);

static void start(struct work *work)
{
    BUG_ON(uv_queue_work(work->loop, &work->req, on_run, on_after) != 0);
}

static void on_after(uv_work_t *req, int status)
{
    struct work *work = CONTAINER_OF(req, struct work, req);
    struct work_line *line = work->line;

    if (line != NULL) {
        struct list *next = list_pop_front(&line->waiting);
        if (next != NULL)
            start(LIST_ENTRY(next, struct work, node));
        else if (--line->running == 0)
            line_drop(line);
    }
    work->after(work);
}

void work_submit(uv_loop_t *loop, struct work *work, uint64_t device, work_fn *run, work_fn *after)
{
    struct work_line *line = device == WORK_UNLIMITED ? NULL : line_get(loop, device);

    work->loop = loop;
    work->line = line;
    work->run = run;
    work->after = after;
    if (line != NULL && line->running >= line->limit) {
        list_push_back(&line->waiting, &work->node);
        return;
    }
    if (line != NULL)
        line->running++;
    start(work);
}

bool work_free(uv_loop_t *loop, uint64_t device)
{
    pthread_mutex_lock(&lines_lock);
    const struct work_line *line = line_find(loop, device);
    bool free_thread = line == NULL || (list_empty(&line->waiting) && line->running < line->limit);
    pthread_mutex_unlock(&lines_lock);
    return free_thread;
}
