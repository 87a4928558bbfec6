/* bullmq_args.c - contract in bullmq.h. */
#include <stdio.h>

#include "base/clock.h"
#include "broker/bullmq.h"

static void add(struct bullmq_args *args, const void *bytes, size_t len)
{
    if (args->count == args->cap) {
        size_t cap = MAX(args->cap * 2, (size_t)32);
        size_t *grown = realloc(args->ends, cap * sizeof *grown);
        if (grown == NULL) {
            args->failed = true;
            return;
        }
        args->ends = grown;
        args->cap = cap;
    }
    if (buf_add(&args->bytes, bytes, len) < 0)
        args->failed = true;
    args->ends[args->count++] = args->bytes.len;
}

void bullmq_args_init(struct bullmq_args *args, const struct bullmq_queue *queue)
{
    *args = (struct bullmq_args){ 0 };
    bullmq_args_text(args, queue->meta); /* the key */
    add(args, queue->base, queue->base_len);
    bullmq_arg_int(args, clock_wall_ms());
}

void bullmq_args_text(struct bullmq_args *args, const char *text)
{
    add(args, text, strlen(text));
}

void bullmq_arg_int(struct bullmq_args *args, int64_t value)
{
    char text[24];
    int len = snprintf(text, sizeof text, "%" PRId64, value);
    add(args, text, (size_t)len);
}

static void done(struct bullmq_args *args)
{
    buf_done(&args->bytes);
    free(args->ends);
}

void bullmq_call(struct bullmq_queue *queue, struct bullmq_args *args, struct redis_script *script,
                 int flags, redis_reply_fn *fn, void *arg)
{
    SCOPED_FREE const char **argv = calloc(args->count, sizeof *argv);
    SCOPED_FREE size_t *lens = calloc(args->count, sizeof *lens);

    if (argv == NULL || lens == NULL || args->failed) {
        struct mandor_err err;
        int r = err_set(&err, -ENOMEM, FAULT_HOST, "call of BullMQ's queue '%s'", queue->name);
        done(args);
        fn(arg, r, NULL, &err);
        return;
    }
    for (size_t i = 0, from = 0; i < args->count; from = args->ends[i++]) {
        argv[i] = args->bytes.data + from;
        lens[i] = args->ends[i] - from;
    }
    redis_eval(queue->mq->calls, script, flags, BULLMQ_CALL_MS, 1, args->count, argv, lens, fn,
               arg);
    done(args);
}

const char *bullmq_reply_text(const redisReply *reply, size_t index, size_t *ret_len)
{
    const redisReply *element = index < reply->elements ? reply->element[index] : NULL;
    bool text = element != NULL && element->str != NULL;

    if (ret_len != NULL)
        *ret_len = text ? element->len : 0;
    return text ? element->str : "";
}

int64_t bullmq_reply_int(const redisReply *reply, size_t index)
{
    const redisReply *element = index < reply->elements ? reply->element[index] : NULL;

    if (element == NULL)
        return 0;
    return element->type == REDIS_REPLY_INTEGER ? element->integer
           : element->str != NULL               ? strtoll(element->str, NULL, 10)
                                                : 0;
}
