/* bullmq_client.c - what the command line asks of BullMQ's queues. */
#include <stdio.h>

#include "base/clock.h"
#include "base/json.h"
#include "broker/bullmq.h"
#include "broker/bullmq_found.h"
#include "broker/lua_scripts.h"

#define PAGE         500     /* jobs in one call */
#define PRIORITY_MAX 2097151 /* 2^21 - 1: scores stay exact in a double */
#define SCAN_STEP    "1000"

/* A request that takes several calls: it is answered when `pending` is 0, with the first error that there was. */
struct errand {
    struct bullmq *mq;
    struct broker_req *req;
    size_t pending;
    int status;
    struct mandor_err err;
    json_t *queues;                     /* array of names, sorted */
    size_t queue_at, state_at, changed; /* where a walk over queues and states has come */
    bool full;                          /* the page was as long as one may be */
    char *after;                        /* BullMQ's id */
    struct bullmq_queue *queue;
    void (*found)(struct errand *errand); /* the queues are known */
};

static struct errand *errand_new(struct bullmq *mq, struct broker_req *req)
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

static void errand_over(struct errand *errand)
{
    if (errand->status < 0)
        bullmq_fail(errand->mq, errand->req, errand->status, &errand->err);
    else
        bullmq_answer(errand->mq, errand->req, 0);
    json_decref(errand->queues);
    free(errand->after);
    free(errand);
}

static void note(struct errand *errand, int result, const struct mandor_err *err)
{
    if (result < 0 && errand->status == 0) {
        errand->status = result;
        errand->err = *err;
    }
}

static void no_memory(struct errand *errand)
{
    struct mandor_err err;
    note(errand, err_set(&err, -ENOMEM, FAULT_HOST, "ask BullMQ"), &err);
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

/* SCAN may say a key twice. */
static json_t *sorted(const json_t *names)
{
    size_t count = json_array_size(names);
    SCOPED_FREE const char **texts = calloc(count + 1, sizeof *texts);
    json_t *list = json_array();

    if (texts == NULL)
        return list;
    for (size_t i = 0; i < count; i++)
        texts[i] = json_string_value(json_array_get(names, i));
    qsort(texts, count, sizeof *texts, by_name);
    for (size_t i = 0; i < count; i++)
        if (i == 0 || !str_eq(texts[i], texts[i - 1]))
            (void)json_array_append_new(list, json_string(texts[i]));
    return list;
}

static void scan(struct errand *errand, const char *cursor);

static void on_scanned(void *arg, int result, const redisReply *reply, const struct mandor_err *err)
{
    struct errand *errand = arg;

    if (result < 0 || reply->elements != 2) {
        note(errand, result < 0 ? result : -EPROTO, result < 0 ? err : &errand->err);
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
        no_memory(errand);
        errand_over(errand);
        return;
    }
    const char *argv[] = { "SCAN", cursor, "MATCH", pattern.data, "COUNT", SCAN_STEP };
    redis_call(errand->mq->calls, REDIS_AGAIN, BULLMQ_CALL_MS, ARRAY_LEN(argv), argv, NULL,
               on_scanned, errand);
}

/* found() runs with errand->queues: the one that is named, or all. */
static void find_queues(struct errand *errand, const char *name,
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

static struct bullmq_queue *queue_at(struct errand *errand, size_t index)
{
    const char *name = json_string_value(json_array_get(errand->queues, index));
    struct bullmq_queue *queue = name != NULL ? bullmq_queue(errand->mq, name) : NULL;

    if (name != NULL && queue == NULL)
        no_memory(errand);
    return queue;
}

/* The queue and BullMQ's id that mandor's id names. */
static struct bullmq_queue *queue_of_id(struct bullmq *mq, struct broker_req *req, const char *text,
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

static int no_such_job(struct broker_req *req, const char *id)
{
    return err_set(&req->err, -ENOENT, FAULT_CALLER, "job '%s' does not exist", id);
}

/* ---- add ---- */

static bool given(const struct spec *spec, const char *key)
{
    size_t count;
    const struct spec_option *options = spec_options(&count);

    for (size_t i = 0; i < count; i++)
        if (str_eq(options[i].key, key))
            return (spec->given >> i & 1) != 0;
    return false;
}

static json_t *backoff_json(const struct spec *spec)
{
    bool said = given(spec, "backoff.type") || given(spec, "backoff.delay") ||
                given(spec, "backoff.jitter");
    if (!said && spec->attempts < 2)
        return NULL;
    json_t *backoff =
        json_pack("{s:s, s:I}", "type", spec->backoff == BACKOFF_FIXED ? "fixed" : "exponential",
                  "delay", (json_int_t)spec->backoff_delay_ms);
    if (spec->backoff_jitter > 0 && (!said || given(spec, "backoff.jitter")))
        (void)json_object_set_new(backoff, "jitter", json_real(spec->backoff_jitter));
    return backoff;
}

static char *opts_text(const struct spec *spec)
{
    SCOPED_JSON *opts = json_pack("{s:I}", "attempts", (json_int_t)spec->attempts);
    json_t *backoff = backoff_json(spec);

    if (spec->delay_ms > 0)
        (void)json_object_set_new(opts, "delay", json_integer(spec->delay_ms));
    if (spec->priority > 0)
        (void)json_object_set_new(opts, "priority", json_integer(spec->priority));
    if (backoff != NULL)
        (void)json_object_set_new(opts, "backoff", backoff);
    if (spec->unique != NULL)
        (void)json_object_set_new(opts, "de", json_pack("{s:s}", "id", spec->unique));
    return json_text(opts);
}

/* What the job's runner reads; the rest is BullMQ's business.  A queue that is bound takes bare data. */
static char *data_text(const struct spec *spec)
{
    if (spec->kind == SPEC_DATA || spec->kind == SPEC_POOL)
        return spec->data != NULL ? json_text(spec->data) : strdup("{}");
    if (spec->kind == SPEC_PYTHON)
        return json_text(spec->python);

    static const char *const not_data[] = { "queue",  "priority", "delay",
                                            "unique", "attempts", "backoff" };
    SCOPED_FREE char *text = spec_to_text(spec);
    SCOPED_JSON *data = text != NULL ? json_loads(text, JSON_ALLOW_NUL, NULL) : NULL;

    for (size_t i = 0; i < ARRAY_LEN(not_data); i++)
        (void)json_object_del(data, not_data[i]);
    return data != NULL ? json_text(data) : NULL;
}

/* What lists of jobs show first. */
static const char *name_of(const struct spec *spec)
{
    if (spec->kind != SPEC_EXEC)
        return spec->kind == SPEC_POOL ? spec->pool : spec->kind == SPEC_PYTHON ? "python" : "data";
    const char *slash = strrchr(spec->argv[0].bytes, '/');
    const char *name = slash != NULL && slash[1] != '\0' ? slash + 1 : spec->argv[0].bytes;
    return name[0] != '\0' ? name : "exec";
}

struct added {
    struct errand *errand;
    size_t index;
    char *queue;
};

static void on_added(void *arg, int result, const redisReply *reply, const struct mandor_err *err)
{
    struct added *added = arg;
    struct errand *errand = added->errand;
    struct broker_added *slot = &errand->req->add.added[added->index];

    note(errand, result, err);
    if (result == 0) {
        int len = snprintf(slot->id, sizeof slot->id, "%s:%s", added->queue,
                           bullmq_reply_text(reply, 0, NULL));
        slot->existing = bullmq_reply_int(reply, 1) != 0;
        if (len >= (int)sizeof slot->id) {
            struct mandor_err cut;
            note(errand,
                 err_set(&cut, -ENAMETOOLONG, FAULT_CALLER,
                         "the job was added, but its id is longer than %zu bytes",
                         sizeof slot->id - 1),
                 &cut);
        }
    }
    free(added->queue);
    free(added);
    if (--errand->pending == 0)
        errand_over(errand);
}

static void add_one(struct errand *errand, const struct spec *spec, size_t index)
{
    struct bullmq_queue *queue = bullmq_queue(errand->mq, spec->queue);
    struct added *added = calloc(1, sizeof *added);
    SCOPED_FREE char *data = data_text(spec), *opts = opts_text(spec);
    SCOPED_FREE char *name = json_utf8_lossy(name_of(spec), strlen(name_of(spec)), NULL);

    if (spec->priority > PRIORITY_MAX) {
        struct mandor_err err;
        note(errand,
             err_set(&err, -EINVAL, FAULT_CALLER, "priority %" PRId64 ": BullMQ has 0 to %d",
                     spec->priority, PRIORITY_MAX),
             &err);
        free(added);
        return;
    }
    if (queue == NULL || added == NULL || data == NULL || opts == NULL || name == NULL ||
        (added->queue = strdup(spec->queue)) == NULL) {
        free(added);
        no_memory(errand);
        return;
    }
    added->errand = errand;
    added->index = index;
    errand->pending++;

    struct bullmq_args args;
    bullmq_args_init(&args, queue);
    bullmq_args_text(&args, name);
    bullmq_args_text(&args, data);
    bullmq_args_text(&args, opts);
    bullmq_args_text(&args, "");
    bullmq_arg_int(&args, spec->delay_ms);
    bullmq_arg_int(&args, spec->priority);
    bullmq_arg_int(&args, 0);
    bullmq_args_text(&args, spec->unique != NULL ? spec->unique : "");
    bullmq_arg_int(&args, 0);
    bullmq_args_text(&args, BULLMQ_VERSION);
    bullmq_call(queue, &args, &lua_bullmq_add, 0, on_added, added);
}

void bullmq_add(struct bullmq *mq, struct broker_req *req)
{
    struct errand *errand = errand_new(mq, req);

    if (errand == NULL)
        return;
    req->add.served = true; /* whoever serves the queue need not be ours */
    errand->pending = 1;
    for (size_t i = 0; i < req->add.count; i++)
        add_one(errand, req->add.specs[i], i);
    if (--errand->pending == 0)
        errand_over(errand);
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
    struct bullmq_queue *queue = queue_of_id(mq, req, text, &id);
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

    note(errand, result, err);
    if (result == 0 && reply->elements == 0)
        note(errand, no_such_job(req, req->show.id), &req->err);
    else if (result == 0 &&
             (req->show.record = bullmq_found_json(reply->element[0], errand->queue->name)) == NULL)
        no_memory(errand);
    errand_over(errand);
}

void bullmq_show(struct bullmq *mq, struct broker_req *req)
{
    req->show.record = NULL;
    ask_one(mq, req, req->show.id, on_shown);
}

static void give_output(struct broker_req *req, const redisReply *job)
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
    (void)snprintf(req->output.worker, sizeof req->output.worker, "%s",
                   worker != NULL ? worker : "");
    if (json_object_get(record, key) != NULL)
        (void)!json_bytes_get(json_object_get(record, key), &req->output.bytes, &req->output.len,
                              NULL);
    else if (json_is_string(target))
        req->output.path = strdup(json_string_value(target));
}

static void on_output(void *arg, int result, const redisReply *reply, const struct mandor_err *err)
{
    struct errand *errand = arg;

    note(errand, result, err);
    if (result == 0 && reply->elements == 0)
        note(errand, no_such_job(errand->req, errand->req->output.id), &errand->req->err);
    else if (result == 0)
        give_output(errand->req, reply->element[0]);
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

    note(errand, result, err);
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
                        ? queue_at(errand, errand->queue_at)
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
    find_queues(errand, req->list.queue, list_found);
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

    note(errand, result, err);
    if (result == 0 && reply->integer <= 0)
        note(errand, refusal(req, reply->integer), &req->err);
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

    note(errand, result, err);
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

    note(errand, result, err);
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
    errand->queue = errand->status == 0 ? queue_at(errand, errand->queue_at) : NULL;
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
        req->change.id != NULL ? queue_of_id(mq, req, req->change.id, &id) : NULL;
    if (req->change.id != NULL && queue == NULL)
        return;
    struct errand *errand = errand_new(mq, req);
    if (errand == NULL)
        return;
    if (id == NULL) {
        find_queues(errand, req->change.queue, change_next);
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
    note(errand, result, err);
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
        no_memory(errand);
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

    note(errand, result, err);
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
    struct bullmq_queue *queue = queue_at(errand, index);
    struct counting *counting = calloc(1, sizeof *counting);
    struct bullmq_args args;

    if (queue == NULL || counting == NULL) {
        free(counting);
        no_memory(errand);
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
    find_queues(errand, NULL, stats_found);
}
