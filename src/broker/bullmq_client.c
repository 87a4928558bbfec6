/* bullmq_client.c - what the command line asks of the jobs in BullMQ's queues. */
#include <stdio.h>

#include "base/clock.h"
#include "base/json.h"
#include "broker/bullmq_errand.h"
#include "broker/bullmq_found.h"
#include "broker/lua_scripts.h"

#define PAGE 500 /* jobs in one call */

static int no_such_job(struct broker_req *req, const char *id)
{
    return err_set(&req->err, -ENOENT, FAULT_CALLER, "job '%s' does not exist", id);
}

/* ---- show, output ---- */

static void find_one(struct errand *errand, const char *id, redis_reply_fn *fn)
{
    struct bullmq_args args;

    bullmq_args_init(&args, errand->queue);
    bullmq_args_text(&args, "one");
    bullmq_args_text(&args, id);
    bullmq_call(errand->queue, &args, &lua_bullmq_find, REDIS_AGAIN, fn, errand);
}

static void ask_one(struct bullmq *mq, struct broker_req *req, const char *text, redis_reply_fn *fn)
{
    const char *id;
    struct bullmq_queue *queue = bullmq_queue_of_id(mq, req, text, &id);
    struct errand *errand = queue != NULL ? errand_new(mq, req) : NULL;

    if (errand == NULL)
        return;
    errand->queue = queue;
    find_one(errand, id, fn);
}

static void on_shown(void *arg, int result, const redisReply *reply, const struct mandor_err *err)
{
    struct errand *errand = arg;
    struct broker_req *req = errand->req;

    errand_note(errand, result, err);
    if (result == 0 && reply->elements == 0)
        errand_note(errand, no_such_job(req, req->show.id), &req->err);
    else if (result == 0 &&
             (req->show.record = bullmq_found_json(reply->element[0], errand->queue->name)) == NULL)
        errand_no_memory(errand);
    errand_over(errand);
}

void bullmq_show(struct bullmq *mq, struct broker_req *req)
{
    req->show.record = NULL;
    ask_one(mq, req, req->show.id, on_shown);
}

/* The record keeps what the newest attempt wrote.  0, or -ENOENT when another one is asked for. */
static int give_output(struct broker_req *req, const redisReply *job)
{
    SCOPED_JSON *record = bullmq_found_record(job);
    const json_t *last = json_object_get(record, "last");
    const char *key = req->output.want_stderr ? "err" : "out";
    const char *stream = req->output.want_stderr ? "stderr" : "stdout";
    const json_t *target =
        json_object_get(json_object_get(json_object_get(last, "streams"), stream), "target");
    const char *worker = json_string_value(json_object_get(record, "worker"));

    req->output.active = bullmq_found_state(job, record) == JOB_ACTIVE;
    req->output.attempt_out = bullmq_number(record, "attempt", 0);
    if (req->output.attempt != 0 && req->output.attempt != req->output.attempt_out)
        return -ENOENT;
    (void)snprintf(req->output.worker, sizeof req->output.worker, "%s",
                   worker != NULL ? worker : "");
    if (json_object_get(record, key) != NULL)
        (void)!json_bytes_get(json_object_get(record, key), &req->output.bytes, &req->output.len,
                              NULL);
    else if (json_is_string(target))
        req->output.path = strdup(json_string_value(target));
    return 0;
}

static void on_output(void *arg, int result, const redisReply *reply, const struct mandor_err *err)
{
    struct errand *errand = arg;

    errand_note(errand, result, err);
    if (result == 0 && reply->elements == 0)
        errand_note(errand, no_such_job(errand->req, errand->req->output.id), &errand->req->err);
    else if (result == 0 && give_output(errand->req, reply->element[0]) < 0)
        errand_note(errand,
                    err_set(&errand->req->err, -ENOENT, FAULT_CALLER,
                            "the output of attempt %" PRId64 " of job '%s' is not kept",
                            errand->req->output.attempt, errand->req->output.id),
                    &errand->req->err);
    errand_over(errand);
}

void bullmq_output(struct bullmq *mq, struct broker_req *req)
{
    req->output.bytes = NULL;
    req->output.len = 0;
    req->output.path = NULL;
    req->output.active = false;
    req->output.worker[0] = '\0';
    ask_one(mq, req, req->output.id, on_output);
}

/* ---- list ---- */

static void list_next(struct errand *errand);

static void on_listed(void *arg, int result, const redisReply *reply, const struct mandor_err *err)
{
    struct errand *errand = arg;
    struct broker_req *req = errand->req;

    errand_note(errand, result, err);
    size_t count = result == 0 ? reply->elements : 0;
    free(errand->after);
    errand->after = NULL;
    for (size_t i = 0; i < count && json_array_size(req->list.records) < req->list.limit; i++) {
        const redisReply *job = reply->element[i];
        SCOPED_JSON *record = bullmq_found_record(job);
        if (req->list.state >= 0 && (int)bullmq_found_state(job, record) != req->list.state)
            continue;
        (void)json_array_append_new(req->list.records, bullmq_found_json(job, errand->queue->name));
    }
    if (count == PAGE && json_array_size(req->list.records) < req->list.limit)
        errand->after = strdup(bullmq_reply_text(reply->element[count - 1], 0, NULL));
    else
        errand->queue_at++;
    list_next(errand);
}

static void list_next(struct errand *errand)
{
    struct broker_req *req = errand->req;
    size_t count;
    const char *const *states = bullmq_states(req->list.state, &count);

    errand->queue = errand->status == 0 && json_array_size(req->list.records) < req->list.limit
                        ? errand_queue_at(errand, errand->queue_at)
                        : NULL;
    if (errand->queue == NULL) {
        errand_over(errand);
        return;
    }
    struct bullmq_args args;
    bullmq_args_init(&args, errand->queue);
    bullmq_args_text(&args, "page");
    bullmq_arg_int(&args, PAGE);
    bullmq_args_text(&args, errand->after != NULL ? errand->after : "");
    for (size_t i = 0; i < count; i++)
        bullmq_args_text(&args, states[i]);
    bullmq_call(errand->queue, &args, &lua_bullmq_find, REDIS_AGAIN, on_listed, errand);
}

/* Go on behind the last one of the page before. */
static void list_found(struct errand *errand)
{
    const struct broker_req *req = errand->req;
    SCOPED_FREE char *name = NULL;
    const char *id;

    if (req->list.after != NULL && bullmq_split_id(req->list.after, &name, &id) == 0) {
        while (errand->queue_at < json_array_size(errand->queues) &&
               strcmp(json_string_value(json_array_get(errand->queues, errand->queue_at)), name) <
                   0)
            errand->queue_at++;
        errand->after = strdup(id);
    }
    list_next(errand);
}

void bullmq_list(struct bullmq *mq, struct broker_req *req)
{
    struct errand *errand = errand_new(mq, req);

    if (errand == NULL)
        return;
    req->list.records = json_array();
    errand_find_queues(errand, req->list.queue, list_found);
}

/* ---- cancel, retry, remove ---- */

static const char *const verbs[BROKER_OPS] = {
    [BROKER_CANCEL] = "cancel", [BROKER_RETRY] = "retry", [BROKER_REMOVE] = "remove"
};

static int refusal(struct broker_req *req, int64_t code)
{
    const char *id = req->change.id, *verb = verbs[req->op];

    switch (code) {
    case -1:
        return no_such_job(req, id);
    case -8:
        return err_set(&req->err, -EBUSY, FAULT_CALLER,
                       "cannot %s job '%s': its scheduler would stop; remove the scheduler", verb,
                       id);
    case -12:
        return err_set(&req->err, -EBUSY, FAULT_CALLER,
                       "cannot %s job '%s': it is active, or has children that have not ended",
                       verb, id);
    default:
        return err_set(&req->err, -EBUSY, FAULT_CALLER,
                       "cannot %s job '%s' in the state that it is in", verb, id);
    }
}

/* The record of a job that was cancelled before it began. */
static char *cancelled_record(void)
{
    static const char last[] = "{\"cause\":\"cancelled\",\"error\":\"cancelled before it ran\"}";
    struct bullmq_record record = { .worker = "",
                                    .state = JOB_CANCELLED,
                                    .finished_ms = clock_wall_ms(),
                                    .last = last,
                                    .before = "" };
    return bullmq_record_text(&record);
}

static void change_one(struct errand *errand, const char *id, redis_reply_fn *fn)
{
    SCOPED_FREE char *record = cancelled_record();
    struct bullmq_args args;

    errand->pending++;
    bullmq_args_init(&args, errand->queue);
    bullmq_args_text(&args, verbs[errand->req->op]);
    bullmq_args_text(&args, id);
    bullmq_args_text(&args, record != NULL ? record : "");
    bullmq_call(errand->queue, &args, &lua_bullmq_change, 0, fn, errand);
}

static void on_changed(void *arg, int result, const redisReply *reply, const struct mandor_err *err)
{
    struct errand *errand = arg;
    struct broker_req *req = errand->req;

    errand_note(errand, result, err);
    if (result == 0 && reply->integer <= 0)
        errand_note(errand, refusal(req, reply->integer), &req->err);
    else if (result == 0)
        req->change.count = 1;
    errand_over(errand);
}

static void change_next(struct errand *errand);

/* A full page of which something has left: the same state has more to give. */
static void change_page(struct errand *errand)
{
    if (!errand->full || errand->changed == 0)
        errand->state_at++;
    change_next(errand);
}

static void on_one_of_many(void *arg, int result, const redisReply *reply,
                           const struct mandor_err *err)
{
    struct errand *errand = arg;

    errand_note(errand, result, err);
    if (result == 0 && reply->integer > 0) {
        errand->req->change.count++;
        errand->changed += reply->integer == 1; /* 2: it is where it was until its end */
    }
    if (--errand->pending == 0)
        change_page(errand);
}

static void on_ids(void *arg, int result, const redisReply *reply, const struct mandor_err *err)
{
    struct errand *errand = arg;

    errand_note(errand, result, err);
    size_t count = result == 0 ? reply->elements : 0;
    errand->changed = 0;
    errand->full = count == PAGE;
    errand->pending = 1;
    for (size_t i = 0; i < count; i++)
        change_one(errand, bullmq_reply_text(reply, i, NULL), on_one_of_many);
    if (--errand->pending == 0)
        change_page(errand);
}

static void change_next(struct errand *errand)
{
    size_t count;
    const char *const *states = bullmq_states(errand->req->change.state, &count);

    if (errand->state_at >= count) {
        errand->state_at = 0;
        errand->queue_at++;
    }
    errand->queue = errand->status == 0 ? errand_queue_at(errand, errand->queue_at) : NULL;
    if (errand->queue == NULL) {
        errand_over(errand);
        return;
    }
    struct bullmq_args args;
    bullmq_args_init(&args, errand->queue);
    bullmq_args_text(&args, "ids");
    bullmq_args_text(&args, states[errand->state_at]);
    bullmq_arg_int(&args, PAGE);
    bullmq_call(errand->queue, &args, &lua_bullmq_find, REDIS_AGAIN, on_ids, errand);
}

void bullmq_change(struct bullmq *mq, struct broker_req *req)
{
    const char *id = NULL;

    req->change.count = 0;
    req->change.worker[0] = '\0';
    struct bullmq_queue *queue =
        req->change.id != NULL ? bullmq_queue_of_id(mq, req, req->change.id, &id) : NULL;
    if (req->change.id != NULL && queue == NULL)
        return;
    struct errand *errand = errand_new(mq, req);
    if (errand == NULL)
        return;
    if (id == NULL) {
        errand_find_queues(errand, req->change.queue, change_next);
        return;
    }
    errand->queue = queue;
    change_one(errand, id, on_changed);
}

/* ---- pause ---- */

static void on_paused(void *arg, int result, const redisReply *reply, const struct mandor_err *err)
{
    struct errand *errand = arg;

    (void)reply;
    errand_note(errand, result, err);
    errand_over(errand);
}

void bullmq_pause(struct bullmq *mq, struct broker_req *req)
{
    struct errand *errand = errand_new(mq, req);
    struct bullmq_queue *queue = bullmq_queue(mq, req->pause.queue);
    struct bullmq_args args;

    if (errand == NULL)
        return;
    if (queue == NULL) {
        errand_no_memory(errand);
        errand_over(errand);
        return;
    }
    bullmq_args_init(&args, queue);
    bullmq_args_text(&args, req->pause.paused ? "pause" : "resume");
    bullmq_call(queue, &args, &lua_bullmq_pause, REDIS_AGAIN, on_paused, errand);
}

/* ---- statistics ---- */

struct counting {
    struct errand *errand;
    const char *name; /* borrowed from errand->queues */
};

static void on_counted(void *arg, int result, const redisReply *reply, const struct mandor_err *err)
{
    struct counting *counting = arg;
    struct errand *errand = counting->errand;

    errand_note(errand, result, err);
    if (result == 0) {
        int64_t oldest = bullmq_reply_int(reply, 6);
        json_t *queue = json_pack(
            "{s:I, s:I, s:I, s:I, s:I, s:i, s:b, s:o}", "waiting",
            (json_int_t)(bullmq_reply_int(reply, 0) + bullmq_reply_int(reply, 7)), "delayed",
            (json_int_t)bullmq_reply_int(reply, 1), "active",
            (json_int_t)bullmq_reply_int(reply, 2), "completed",
            (json_int_t)bullmq_reply_int(reply, 3), "failed",
            (json_int_t)bullmq_reply_int(reply, 4), "cancelled", 0, "paused",
            (int)bullmq_reply_int(reply, 5), "oldest_waiting_ms",
            oldest > 0 ? json_integer(MAX(clock_wall_ms() - oldest, (int64_t)0)) : json_null());
        (void)json_object_set_new(json_object_get(errand->req->stats.stats, "queues"),
                                  counting->name, queue);
    }
    free(counting);
    if (--errand->pending == 0)
        errand_over(errand);
}

static void count_queue(struct errand *errand, size_t index)
{
    struct bullmq_queue *queue = errand_queue_at(errand, index);
    struct counting *counting = calloc(1, sizeof *counting);
    struct bullmq_args args;

    if (queue == NULL || counting == NULL) {
        free(counting);
        errand_no_memory(errand);
        return;
    }
    counting->errand = errand;
    counting->name = json_string_value(json_array_get(errand->queues, index));
    errand->pending++;
    bullmq_args_init(&args, queue);
    bullmq_call(queue, &args, &lua_bullmq_counts, REDIS_AGAIN, on_counted, counting);
}

/* A line of CLIENT LIST whose name is that of a worker of one of these queues. */
static void add_worker(struct errand *errand, const char *line, size_t len)
{
    SCOPED_FREE char *text = strndup(line, len);
    char *name = text != NULL ? strstr(text, " name=") : NULL;

    if (name == NULL)
        return;
    name += strlen(" name=");
    name[strcspn(name, " ")] = '\0';
    for (size_t i = 0; i < json_array_size(errand->queues); i++) {
        const char *queue = json_string_value(json_array_get(errand->queues, i));
        SCOPED_FREE char *client = bullmq_client_name(errand->mq->settings.prefix, queue, NULL);
        size_t head = client != NULL ? strlen(client) : 0;
        if (head == 0 || strncmp(name, client, head) != 0 ||
            (name[head] != '\0' && strncmp(name + head, ":w:", 3) != 0))
            continue;
        (void)json_array_append_new(json_object_get(errand->req->stats.stats, "workers"),
                                    json_pack("{s:s, s:[s], s:b}", "name",
                                              name[head] != '\0' ? name + head + 3 : name, "queues",
                                              queue, "alive", 1));
    }
}

/* Where a managed server has no CLIENT LIST, workers are not listed. */
static void on_clients(void *arg, int result, const redisReply *reply, const struct mandor_err *err)
{
    struct errand *errand = arg;

    (void)err;
    for (const char *line = result == 0 && reply->str != NULL ? reply->str : ""; *line != '\0';) {
        size_t len = strcspn(line, "\n");
        add_worker(errand, line, len);
        line += len + (line[len] == '\n');
    }
    if (--errand->pending == 0)
        errand_over(errand);
}

static void stats_found(struct errand *errand)
{
    const char *argv[] = { "CLIENT", "LIST" };

    errand->pending = 2;
    for (size_t i = 0; i < json_array_size(errand->queues); i++)
        count_queue(errand, i);
    redis_call(errand->mq->calls, REDIS_AGAIN, BULLMQ_CALL_MS, ARRAY_LEN(argv), argv, NULL,
               on_clients, errand);
    if (--errand->pending == 0)
        errand_over(errand);
}

void bullmq_stats(struct bullmq *mq, struct broker_req *req)
{
    struct errand *errand = errand_new(mq, req);

    if (errand == NULL)
        return;
    req->stats.stats = json_pack("{s:{}, s:[]}", "queues", "workers");
    errand_find_queues(errand, NULL, stats_found);
}
