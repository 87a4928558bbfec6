/* bullmq_wait.c - an idle queue: one BZPOPMIN on its marker, on a connection of its own.
 *
 * The marker only makes things quick: every end of the wait is followed by a look, and there is one at the latest after
 * BULLMQ_DRAIN_DELAY_MS.  Who pops a marker owes a look to whoever put it there. */
#include <stdio.h>

#include "base/clock.h"
#include "base/log.h"
#include "broker/bullmq.h"

#define PASS_ON_MS 50 /* so long after its marker was popped a look must have begun */

static void look_again(struct bullmq_queue *queue)
{
    queue->dry = false;
    broker_woken(queue->mq->broker);
}

static void pass_on(struct bullmq_queue *queue);

/* A rate limit is over; or we popped a marker and found no slot for what it announced. */
static void on_timer(uv_timer_t *timer)
{
    struct bullmq_queue *queue = timer->data;

    if (queue->owed)
        pass_on(queue);
    else
        look_again(queue);
}

static void sleep_for(struct bullmq_queue *queue, int64_t ms)
{
    if (!queue->timer_open) {
        if (uv_timer_init(broker_loop(queue->mq->broker), &queue->timer) < 0)
            return;
        queue->timer.data = queue;
        queue->timer_open = true;
        queue->mq->open++;
    }
    queue->dry_until_ms = clock_mono_ms() + ms;
    (void)uv_timer_start(&queue->timer, on_timer, (uint64_t)ms, 0);
}

static void block(struct bullmq_queue *queue);

/* The marker of a delayed job: nobody else will wake up for it now. */
static void on_due_marker(struct bullmq_queue *queue, const char *score)
{
    int64_t due_ms = (int64_t)strtod(score, NULL);

    queue->due_ms = queue->due_ms > 0 ? MIN(queue->due_ms, due_ms) : due_ms;
    if (queue->due_ms - clock_wall_ms() < 1)
        look_again(queue);
    else
        block(queue);
}

static void on_passed(void *arg, int result, const redisReply *reply, const struct mandor_err *err)
{
    (void)arg, (void)result, (void)reply, (void)err; /* somebody looks sooner or later anyway */
}

/* Nobody here has a slot for it: somebody else shall wake up. */
static void pass_on(struct bullmq_queue *queue)
{
    SCOPED_BUF key = { 0 };

    queue->owed = false;
    if (buf_addf(&key, "%smarker", queue->base) < 0)
        return;
    const char *argv[] = { "ZADD", key.data, "0", "0" };
    redis_call(queue->mq->calls, 0, BULLMQ_CALL_MS, ARRAY_LEN(argv), argv, NULL, on_passed, NULL);
}

static void on_popped(void *arg, int result, const redisReply *reply, const struct mandor_err *err)
{
    struct bullmq_queue *queue = arg;
    bool popped = result == 0 && reply->type == REDIS_REPLY_ARRAY && reply->elements == 3;

    queue->blocking = false;
    if (queue->mq->closing || !queue->dry)
        return;
    if (result < 0)
        log_debug("broker", "wait at BullMQ's queue '%s': %s", queue->name, err->msg);
    if (popped && str_eq(bullmq_reply_text(reply, 1, NULL), "1")) {
        on_due_marker(queue, bullmq_reply_text(reply, 2, NULL));
        return;
    }
    queue->due_ms = 0;
    if (popped) {
        queue->owed = true;
        sleep_for(queue, PASS_ON_MS);
    }
    look_again(queue);
}

/* Until when to block at the server, or 0: do not. */
static int64_t patience(const struct bullmq_queue *queue)
{
    if (queue->due_ms == 0)
        return BULLMQ_DRAIN_DELAY_MS;
    int64_t left_ms = queue->due_ms - clock_wall_ms();
    return MIN(MAX(left_ms, (int64_t)0), (int64_t)BULLMQ_BLOCK_MAX_MS);
}

static void block(struct bullmq_queue *queue)
{
    int64_t ms = patience(queue);
    SCOPED_BUF key = { 0 };
    char seconds[32];

    queue->dry_until_ms = clock_mono_ms() + MAX(ms, (int64_t)1) + 1000;
    if (queue->blocking || queue->mq->closing || queue->waiter == NULL)
        return;
    if (ms == 0 || buf_addf(&key, "%smarker", queue->base) < 0) {
        sleep_for(queue, 1);
        return;
    }
    (void)snprintf(seconds, sizeof seconds, "%" PRId64 ".%03d", ms / 1000, (int)(ms % 1000));
    const char *argv[] = { "BZPOPMIN", key.data, seconds };
    queue->blocking = true;
    redis_call(queue->waiter, 0, ms + 1000, ARRAY_LEN(argv), argv, NULL, on_popped, queue);
}

void bullmq_wait(struct bullmq_queue *queue, int64_t limit_ms)
{
    if (limit_ms > 0)
        sleep_for(queue, MIN(limit_ms, (int64_t)BULLMQ_LIMIT_MAX_MS));
    else
        block(queue);
}
