/* bullmq_errand.c - contract in bullmq_errand.h. */
#include "broker/bullmq_errand.h"

#include "base/json.h"

#define SCAN_STEP "1000"

struct errand *errand_new(struct bullmq *mq, struct broker_req *req)
{
    struct errand *errand = calloc(1, sizeof *errand);

    if (errand == NULL || (errand->queues = json_array()) == NULL) {
        free(errand);
        bullmq_answer(mq, req, err_set(&req->err, -ENOMEM, FAULT_HOST, "ask BullMQ"));
        return NULL;
    }
    errand->mq = mq;
    errand->req = req;
    return errand;
}

void errand_over(struct errand *errand)
{
    if (errand->status < 0)
        bullmq_fail(errand->mq, errand->req, errand->status, &errand->err);
    else
        bullmq_answer(errand->mq, errand->req, 0);
    json_decref(errand->queues);
    free(errand->after);
    free(errand);
}

void errand_note(struct errand *errand, int result, const struct mandor_err *err)
{
    if (result < 0 && errand->status == 0) {
        errand->status = result;
        errand->err = *err;
    }
}

void errand_no_memory(struct errand *errand)
{
    struct mandor_err err;
    errand_note(errand, err_set(&err, -ENOMEM, FAULT_HOST, "ask BullMQ"), &err);
}

/* ---- which queues there are ---- */

static void add_queue(struct errand *errand, const char *key)
{
    const char *prefix = errand->mq->settings.prefix;
    size_t head = strlen(prefix) + 1, len = strlen(key), tail = strlen(":meta");

    if (len <= head + tail || strncmp(key, prefix, head - 1) != 0)
        return;
    SCOPED_FREE char *name = strndup(key + head, len - head - tail);
    if (name != NULL && strchr(name, ':') == NULL)
        (void)json_array_append_new(errand->queues, json_string(name));
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* SCAN may say a key twice.  NULL: out of memory. */
static json_t *sorted(const json_t *names)
{
    size_t count = json_array_size(names);
    SCOPED_FREE const char **texts = calloc(count + 1, sizeof *texts);
    SCOPED_JSON *list = json_array();

    if (texts == NULL || list == NULL)
        return NULL;
    for (size_t i = 0; i < count; i++)
        texts[i] = json_string_value(json_array_get(names, i));
    qsort(texts, count, sizeof *texts, by_name);
    for (size_t i = 0; i < count; i++)
        if (i == 0 || !str_eq(texts[i], texts[i - 1]))
            (void)json_array_append_new(list, json_string(texts[i]));
    return STEAL(list);
}

static void scan(struct errand *errand, const char *cursor);

static void on_scanned(void *arg, int result, const redisReply *reply, const struct mandor_err *err)
{
    struct errand *errand = arg;
    struct mandor_err odd;

    if (result == 0 && reply->elements != 2) {
        result = err_set(&odd, -EPROTO, FAULT_REMOTE, "an answer to SCAN that is none");
        err = &odd;
    }
    errand_note(errand, result, err);
    if (result < 0) {
        errand_over(errand);
        return;
    }
    for (size_t i = 0; i < reply->element[1]->elements; i++)
        add_queue(errand, bullmq_reply_text(reply->element[1], i, NULL));
    const char *cursor = bullmq_reply_text(reply, 0, NULL);
    if (!str_eq(cursor, "0")) {
        scan(errand, cursor);
        return;
    }
    json_t *list = sorted(errand->queues);
    if (list == NULL) {
        errand_no_memory(errand);
        errand_over(errand);
        return;
    }
    json_decref(errand->queues);
    errand->queues = list;
    errand->found(errand);
}

/* The prefix may hold what SCAN takes for a pattern. */
static int add_pattern(struct buf *pattern, const char *prefix)
{
    int r = 0;

    for (; *prefix != '\0' && r == 0; prefix++)
        r = buf_addf(pattern, strchr("*?[]\\", *prefix) != NULL ? "\\%c" : "%c", *prefix);
    return r < 0 ? r : buf_adds(pattern, ":*:meta");
}

static void scan(struct errand *errand, const char *cursor)
{
    SCOPED_BUF pattern = { 0 };

    if (add_pattern(&pattern, errand->mq->settings.prefix) < 0) {
        errand_no_memory(errand);
        errand_over(errand);
        return;
    }
    const char *argv[] = { "SCAN", cursor, "MATCH", pattern.data, "COUNT", SCAN_STEP };
    redis_call(errand->mq->calls, REDIS_AGAIN, BULLMQ_CALL_MS, ARRAY_LEN(argv), argv, NULL,
               on_scanned, errand);
}

void errand_find_queues(struct errand *errand, const char *name,
                        void (*found)(struct errand *errand))
{
    errand->found = found;
    if (name == NULL) {
        scan(errand, "0");
        return;
    }
    (void)json_array_append_new(errand->queues, json_string(name));
    found(errand);
}

struct bullmq_queue *errand_queue_at(struct errand *errand, size_t index)
{
    const char *name = json_string_value(json_array_get(errand->queues, index));
    struct bullmq_queue *queue = name != NULL ? bullmq_queue(errand->mq, name) : NULL;

    if (name != NULL && queue == NULL)
        errand_no_memory(errand);
    return queue;
}

struct bullmq_queue *bullmq_queue_of_id(struct bullmq *mq, struct broker_req *req, const char *text,
                                        const char **ret_id)
{
    SCOPED_FREE char *name = NULL;
    int r = bullmq_split_id(text, &name, ret_id);
    struct bullmq_queue *queue = r == 0 ? bullmq_queue(mq, name) : NULL;

    if (r == -EINVAL)
        bullmq_answer(mq, req,
                      err_set(&req->err, -ENOENT, FAULT_CALLER,
                              "job '%s' does not exist: a job of BullMQ is named QUEUE:ID", text));
    else if (queue == NULL)
        bullmq_answer(mq, req, err_set(&req->err, -ENOMEM, FAULT_HOST, "find job '%s'", text));
    return queue;
}
