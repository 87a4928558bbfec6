/* lane.c - contract in lane.h. */
#include "child/lane.h"

#include <pthread.h>
#include <signal.h>

struct lane {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct list queue, done; /* under lock */
    bool idle, stop, told;   /* under lock; told: the loop knows that something is done */
    uv_async_t *answers;
};

static void *lane_main(void *arg)
{
    struct lane *lane = arg;
    (void)pthread_mutex_lock(&lane->lock);
    for (;;) {
        struct list *node = list_pop_front(&lane->queue);
        if (node == NULL && lane->stop)
            break;
        if (node == NULL) {
            lane->idle = true;
            (void)pthread_cond_wait(&lane->wake, &lane->lock);
            lane->idle = false;
            continue;
        }

        struct lane_task *task = LIST_ENTRY(node, struct lane_task, node);
        (void)pthread_mutex_unlock(&lane->lock);
        task->run(task);
        (void)pthread_mutex_lock(&lane->lock);
        list_push_back(&lane->done, &task->node);
        if (!task->quiet && !lane->told) {
            lane->told = true;
            (void)uv_async_send(lane->answers);
        }
    }
    (void)pthread_mutex_unlock(&lane->lock);
    return NULL;
}

int lane_new(const char *name, uv_async_t *answers, struct lane **ret)
{
    struct lane *lane = calloc(1, sizeof *lane);
    if (lane == NULL)
        return -ENOMEM;
    lane->answers = answers;
    list_init(&lane->queue);
    list_init(&lane->done);
    (void)pthread_mutex_init(&lane->lock, NULL);
    (void)pthread_cond_init(&lane->wake, NULL);

    /* Signals are the loop thread's affair; a child that shares our memory must not run a handler either. */
    sigset_t all, old;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &old);
    int r = -pthread_create(&lane->thread, NULL, lane_main, lane);
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (r < 0) {
        free(lane);
        return r;
    }
    (void)pthread_setname_np(lane->thread, name);
    *ret = lane;
    return 0;
}

void lane_push(struct lane *lane, struct lane_task *task)
{
    (void)pthread_mutex_lock(&lane->lock);
    list_push_back(&lane->queue, &task->node);
    bool wake = lane->idle;
    (void)pthread_mutex_unlock(&lane->lock);
    if (wake)
        (void)pthread_cond_signal(&lane->wake);
}

bool lane_cancel(struct lane *lane, struct lane_task *task)
{
    bool found = false;
    (void)pthread_mutex_lock(&lane->lock);
    for (struct list *at = lane->queue.next; at != &lane->queue && !found; at = at->next)
        found = at == &task->node;
    if (found)
        list_remove(&task->node);
    (void)pthread_mutex_unlock(&lane->lock);
    return found;
}

int lane_drain(struct lane *lane)
{
    struct list done = LIST_INIT(done);
    (void)pthread_mutex_lock(&lane->lock);
    list_splice_back(&done, &lane->done);
    lane->told = false;
    (void)pthread_mutex_unlock(&lane->lock);

    int count = 0;
    for (struct list *node; (node = list_pop_front(&done)) != NULL; count++) {
        struct lane_task *task = LIST_ENTRY(node, struct lane_task, node);
        task->done(task);
    }
    return count;
}

struct lane *lane_free(struct lane *lane)
{
    if (lane == NULL)
        return NULL;
    (void)pthread_mutex_lock(&lane->lock);
    lane->stop = true;
    (void)pthread_mutex_unlock(&lane->lock);
    (void)pthread_cond_signal(&lane->wake);
    (void)pthread_join(lane->thread, NULL);

    (void)lane_drain(lane);
    (void)pthread_mutex_destroy(&lane->lock);
    (void)pthread_cond_destroy(&lane->wake);
    free(lane);
    return NULL;
}
