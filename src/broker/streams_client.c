/* streams_client.c - the requests of clients on streams://: add, show, list, output, cancel, retry, remove, pause, stats. */
#include <stdio.h>

#include "base/clock.h"
#include "base/json.h"
#include "broker/data_dir.h"
#include "broker/lua_scripts.h"
#include "broker/store.h"
#include "broker/streams.h"

#define ADD_BATCH    200
#define CHANGE_BATCH 250

/* ---- add ---- */

/* One request in several scripts, so that none holds the server up for long; all are written at once. */
struct adding {
    struct streams *s;
    struct broker_req *req;
    size_t parts; /* without an answer, the list of workers among them */
    int status;
};
struct part {
    struct adding *adding;
    size_t first, count;
};

static void part_over(struct adding *adding)
{
    if (--adding->parts > 0)
        return;
    struct streams *s = adding->s;
    struct broker_req *req = adding->req;
    int status = adding->status;

    free(adding);
    streams_answer(s, req, status);
}

static void note_failure(struct adding *adding, int result, const struct mandor_err *err)
{
    if (adding->status == 0 && err != NULL)
        adding->req->err = *err;
    if (adding->status == 0)
        adding->status = result;
}

static void on_added(void *arg, int result, const redisReply *reply, const struct mandor_err *err)
{
    struct part *part = arg;
    struct adding *adding = part->adding;

    if (result < 0)
        note_failure(adding, result, err);
    for (size_t i = 0; result == 0 && i < part->count; i++) {
        const redisReply *row = reply_at(reply, i);
        struct broker_added *added = &adding->req->add.added[part->first + i];
        (void)snprintf(added->id, sizeof added->id, "%s", reply_text(reply_at(row, 0)));
        if (added->id[0] == '\0')
            (void)snprintf(added->id, sizeof added->id, "%" PRId64, reply_int(reply_at(row, 0)));
        added->existing = reply_int(reply_at(row, 1)) == 1;
    }
    free(part);
    part_over(adding);
}

/* Is a worker of a row of the scripts' workers() alive?  Those of this machine by their lock (blocking: an open and a flock of a
 * local file), others by their sign of life. */
static bool worker_lives(const struct streams *s, const redisReply *row)
{
    char place[STREAMS_PLACE_SIZE];
    int fd;

    streams_place(reply_text(reply_at(row, 3)), place);
    if (!str_eq(reply_text(reply_at(row, 1)), s->host) ||
        !str_eq(reply_text(reply_at(row, 2)), place))
        return reply_int(reply_at(row, 8)) == 1;
    bool alive = data_dir_worker_alive(reply_text(reply_at(row, 3)), &fd) == 1;
    if (fd >= 0)
        (void)close(fd);
    return alive;
}

static bool serves(const redisReply *worker, const char *queue)
{
    SCOPED_JSON *queues = NULL;
    const char *text = reply_text(reply_at(worker, 5));

    if (json_parse(text, strlen(text), &queues, NULL) < 0)
        return false;
    for (size_t i = 0; i < json_array_size(queues); i++) {
        const char *name = json_string_value(json_array_get(queues, i));
        if (name != NULL && str_eq(name, queue))
            return true;
    }
    return json_array_size(queues) == 0;
}

static bool is_served(const struct streams *s, const redisReply *workers, const char *queue)
{
    for (size_t i = 0; reply_at(workers, i) != NULL; i++)
        if (serves(reply_at(workers, i), queue) && worker_lives(s, reply_at(workers, i)))
            return true;
    return false;
}

static void on_workers(void *arg, int result, const redisReply *reply, const struct mandor_err *err)
{
    struct adding *adding = arg;
    struct broker_req *req = adding->req;

    if (result < 0)
        note_failure(adding, result, err);
    req->add.served = result == 0;
    for (size_t i = 0; i < req->add.count && req->add.served; i++)
        if (i == 0 || !str_eq(req->add.specs[i]->queue, req->add.specs[i - 1]->queue))
            req->add.served = is_served(adding->s, reply, req->add.specs[i]->queue);
    part_over(adding);
}

/* Jobs [first, first + count) as one script.  0 or -ENOMEM; then nothing was asked. */
static int add_part(struct adding *adding, size_t first, size_t count)
{
    struct streams *s = adding->s;
    struct args args = { .count = 0 };
    struct part *part = calloc(1, sizeof *part);
    char nonce[STREAMS_NONCE_SIZE];

    if (part == NULL)
        return -ENOMEM;
    *part = (struct part){ .adding = adding, .first = first, .count = count };
    streams_nonce(s, nonce);
    args_copy(&args, nonce);
    for (size_t i = first; i < first + count; i++) {
        const struct spec *spec = adding->req->add.specs[i];
        SCOPED_FREE char *text = spec_to_text(spec);
        if (text == NULL) {
            args_done(&args);
            free(part);
            return -ENOMEM;
        }
        args_s(&args, spec->queue);
        args_i(&args, spec->delay_ms);
        args_i(&args, spec->priority);
        args_s(&args, spec->unique);
        args_copy(&args, text);
        args_i(&args, spec->attempts);
    }
    adding->parts++;
    streams_eval(s, &lua_streams_add, REDIS_AGAIN, STREAMS_CALL_MS, &args, on_added, part);
    return 0;
}

void streams_add(struct streams *s, struct broker_req *req)
{
    struct adding *adding = calloc(1, sizeof *adding);
    struct args none = { .count = 0 };

    if (adding == NULL) {
        streams_answer(s, req, err_set(&req->err, -ENOMEM, FAULT_HOST, "add jobs"));
        return;
    }
    *adding = (struct adding){ .s = s, .req = req, .parts = 1 };
    for (size_t at = 0; at < req->add.count && adding->status == 0; at += ADD_BATCH) {
        int r = add_part(adding, at, MIN(req->add.count - at, (size_t)ADD_BATCH));
        if (r < 0) {
            struct mandor_err err;
            (void)err_set(&err, r, FAULT_HOST, "add jobs");
            note_failure(adding, r, &err);
        }
    }
    streams_eval(s, &lua_streams_workers, REDIS_AGAIN, STREAMS_CALL_MS, &none, on_workers, adding);
}

/* ---- records ---- */

static json_t *make_record(const char *id, const redisReply *fields, const json_t *history)
{
    SCOPED_JSON *attempt_json = record_stored(field_of(fields, "aj"));
    SCOPED_JSON *spec = record_stored(field_of(fields, "spec"));
    const char *state_text = field_of(fields, "st");
    int state = state_text != NULL ? job_state_from_name(state_text) : -1;
    bool final = state >= 0 && job_state_final((enum job_state)state);

    return record_json(&(struct record){
        .id = id,
        .queue = field_of(fields, "q"),
        .state = state >= 0 ? (enum job_state)state : JOB_FAILED,
        .phase = state == JOB_ACTIVE ? field_of(fields, "ph") : NULL,
        .attempt = field_int(fields, "at"),
        .attempts_used = field_int(fields, "au"),
        .attempts = field_int(fields, "am"),
        .priority = field_int(fields, "pr"),
        .created_ms = field_int(fields, "ct"),
        .started_ms = field_int(fields, "sm"),
        .finished_ms = final ? field_int(fields, "fm") : 0,
        .due_ms = state == JOB_DELAYED ? field_int(fields, "due") : 0,
        .worker = field_of(fields, "w"),
        .unique = field_of(fields, "uq"),
        .cancel_requested = field_of(fields, "cr") != NULL,
        .attempt_json = attempt_json,
        .history = history,
        .spec = spec,
    });
}

/* "attempt|ended at|record" */
static json_t *history_entry(const char *text)
{
    char *end = NULL;
    int64_t attempt = strtoll(text, &end, 10);
    int64_t ended_ms = *end == '|' ? strtoll(end + 1, &end, 10) : 0;

    return record_history_entry(attempt, ended_ms, *end == '|' ? end + 1 : NULL);
}

static int no_job(struct broker_req *req, const char *id)
{
    return err_set(&req->err, -ENOENT, FAULT_CALLER, "no job '%.60s'", id);
}

/* Ours are numbers.  0; else the request has been answered. */
static int check_id(struct streams *s, struct broker_req *req, const char *id)
{
    int64_t number;
    int r = store_job_id(id, &number, &req->err);

    if (r < 0)
        streams_answer(s, req, r);
    return r;
}

static void on_shown(void *arg, int result, const redisReply *reply, const struct mandor_err *err)
{
    struct broker_req *req = arg;
    struct streams *s = req->own;
    const redisReply *fields = reply_at(reply, 0), *past = reply_at(reply, 1);
    SCOPED_JSON *history = NULL;

    if (result < 0) {
        streams_fail(s, req, result, err);
        return;
    }
    if (field_of(fields, "q") == NULL) {
        streams_answer(s, req, no_job(req, req->show.id));
        return;
    }
    for (size_t i = 0; reply_at(past, i) != NULL; i++) {
        if (history == NULL)
            history = json_array();
        (void)json_array_append_new(history, history_entry(reply_text(reply_at(past, i))));
    }
    req->show.record = make_record(req->show.id, fields, history);
    streams_answer(s, req,
                   req->show.record != NULL
                       ? 0
                       : err_set(&req->err, -ENOMEM, FAULT_HOST, "show job %s", req->show.id));
}

void streams_show(struct streams *s, struct broker_req *req)
{
    struct args args = { .count = 0 };

    req->show.record = NULL;
    if (check_id(s, req, req->show.id) < 0)
        return;
    req->own = s;
    args_s(&args, req->show.id);
    args_s(&args, "history");
    streams_eval(s, &lua_streams_show, REDIS_AGAIN, STREAMS_CALL_MS, &args, on_shown, req);
}

static void on_listed(void *arg, int result, const redisReply *reply, const struct mandor_err *err)
{
    struct broker_req *req = arg;
    struct streams *s = req->own;
    SCOPED_JSON *records = json_array();

    if (result < 0) {
        streams_fail(s, req, result, err);
        return;
    }
    for (size_t i = 0; reply_at(reply, i) != NULL; i++) {
        const redisReply *row = reply_at(reply, i);
        json_t *record = make_record(reply_text(reply_at(row, 0)), reply_at(row, 1), NULL);
        /* Not looked up for a list: absent, not null. */
        if (record != NULL)
            (void)json_object_del(record, "history");
        if (record == NULL || json_array_append_new(records, record) < 0) {
            streams_answer(s, req, err_set(&req->err, -ENOMEM, FAULT_HOST, "list jobs"));
            return;
        }
    }
    req->list.records = STEAL(records);
    streams_answer(
        s, req,
        req->list.records != NULL ? 0 : err_set(&req->err, -ENOMEM, FAULT_HOST, "list jobs"));
}

void streams_list(struct streams *s, struct broker_req *req)
{
    struct args args = { .count = 0 };

    req->list.records = NULL;
    if (req->list.after != NULL && check_id(s, req, req->list.after) < 0)
        return;
    req->own = s;
    args_s(&args, req->list.queue);
    args_s(&args, req->list.state >= 0 ? job_state_name((enum job_state)req->list.state) : "");
    args_s(&args, req->list.after);
    args_i(&args, (int64_t)MIN(req->list.limit, (size_t)1000));
    streams_eval(s, &lua_streams_list, REDIS_AGAIN, STREAMS_CALL_MS, &args, on_listed, req);
}

/* ---- output ---- */

/* Where the attempt's record says that the stream is. */
static int output_place(struct broker_req *req, const json_t *record)
{
    json_t *of = json_object_get(json_object_get(record, "streams"),
                                 req->output.want_stderr ? "stderr" : "stdout");
    const char *sink = json_string_value(json_object_get(of, "sink"));
    const char *target = json_string_value(json_object_get(of, "target"));

    if (target != NULL && target[0] == '/' && json_is_true(json_object_get(of, "committed")))
        req->output.path = strdup(target);
    else if (sink != NULL && str_eq(sink, "auto") && target == NULL)
        req->output.bytes = strdup("");
    else
        return 0;
    return req->output.path != NULL || req->output.bytes != NULL ? 0 : -ENOMEM;
}

static int take_output(struct broker_req *req, const redisReply *reply)
{
    const redisReply *bytes = reply_at(reply, 4);
    int64_t which = reply_int(reply_at(reply, 0)), attempt = reply_int(reply_at(reply, 1));
    SCOPED_JSON *record = NULL;

    if (reply_at(reply, 1) == NULL)
        return no_job(req, req->output.id);
    req->output.attempt_out = which;
    req->output.active = reply_int(reply_at(reply, 2)) == 1;
    (void)snprintf(req->output.worker, sizeof req->output.worker, "%s",
                   reply_text(reply_at(reply, 3)));
    if (req->output.active)
        return 0;
    if (which < 0 || which > attempt)
        return err_set(&req->err, -ENOENT, FAULT_CALLER,
                       "job %s has no attempt %" PRId64 ", it was started %" PRId64 " times",
                       req->output.id, which, attempt);
    if (bytes == NULL || bytes->type != REDIS_REPLY_STRING) {
        record = record_stored(reply_text(reply_at(reply, 5)));
        return output_place(req, record) < 0
                   ? err_set(&req->err, -ENOMEM, FAULT_HOST, "read output")
                   : 0;
    }
    req->output.bytes = malloc(bytes->len + 1);
    if (req->output.bytes == NULL)
        return err_set(&req->err, -ENOMEM, FAULT_HOST, "read output");
    memcpy(req->output.bytes, bytes->str, bytes->len + 1);
    req->output.len = bytes->len;
    return 0;
}

static void on_output(void *arg, int result, const redisReply *reply, const struct mandor_err *err)
{
    struct broker_req *req = arg;
    struct streams *s = req->own;

    if (result < 0)
        streams_fail(s, req, result, err);
    else
        streams_answer(s, req, take_output(req, reply));
}

void streams_output(struct streams *s, struct broker_req *req)
{
    struct args args = { .count = 0 };

    req->output.bytes = req->output.path = NULL;
    req->output.len = 0;
    req->output.active = false;
    req->output.worker[0] = '\0';
    if (check_id(s, req, req->output.id) < 0)
        return;
    req->own = s;
    args_s(&args, req->output.id);
    args_i(&args, req->output.attempt);
    args_i(&args, req->output.want_stderr ? 2 : 1);
    streams_eval(s, &lua_streams_output, REDIS_AGAIN, STREAMS_CALL_MS, &args, on_output, req);
}

/* ---- cancel, retry, remove ---- */

static const char *verb(enum broker_op op)
{
    return op == BROKER_CANCEL ? "cancel" : op == BROKER_RETRY ? "retry" : "remove";
}

static int take_change(struct broker_req *req, const redisReply *reply)
{
    static const char *const done[] = { "cancelled", "retried", "removed" };
    int64_t r = reply_int(reply_at(reply, 0));
    const char *text = reply_text(reply_at(reply, 1));

    if (r == 0) {
        req->change.count = 1;
        (void)snprintf(req->change.worker, sizeof req->change.worker, "%s", text);
        return 0;
    }
    if (r == -ENOENT)
        return no_job(req, req->change.id);
    if (r == -1)
        return err_set(&req->err, -EBUSY, FAULT_CALLER,
                       "job %s cannot be retried: another job holds its unique key",
                       req->change.id);
    return err_set(&req->err, -EBUSY, FAULT_CALLER, "job %s cannot be %s: it is %s", req->change.id,
                   done[req->op - BROKER_CANCEL], text);
}

static void on_changed(void *arg, int result, const redisReply *reply, const struct mandor_err *err)
{
    struct broker_req *req = arg;
    struct streams *s = req->own;

    if (result < 0)
        streams_fail(s, req, result, err);
    else
        streams_answer(s, req, take_change(req, reply));
}

static void change_some(struct streams *s, struct broker_req *req, int64_t refused);

static void on_some_changed(void *arg, int result, const redisReply *reply,
                            const struct mandor_err *err)
{
    struct broker_req *req = arg;
    struct streams *s = req->own;

    if (result < 0) {
        streams_fail(s, req, result, err);
        return;
    }
    req->change.count += (size_t)reply_int(reply_at(reply, 0));
    if (reply_int(reply_at(reply, 1)) < CHANGE_BATCH)
        streams_answer(s, req, 0);
    else
        change_some(s, req, reply_int(reply_at(reply, 2)));
}

static void change_some(struct streams *s, struct broker_req *req, int64_t refused)
{
    struct args args = { .count = 0 };

    args_s(&args, verb(req->op));
    args_s(&args, "");
    args_s(&args, req->change.queue);
    args_s(&args, req->change.state >= 0 ? job_state_name((enum job_state)req->change.state) : "");
    args_i(&args, refused);
    args_i(&args, CHANGE_BATCH);
    streams_eval(s, &lua_streams_change, 0, STREAMS_CALL_MS, &args, on_some_changed, req);
}

void streams_change(struct streams *s, struct broker_req *req)
{
    struct args args = { .count = 0 };

    _Static_assert(BROKER_RETRY == BROKER_CANCEL + 1 && BROKER_REMOVE == BROKER_CANCEL + 2,
                   "take_change()");
    req->change.count = 0;
    req->change.worker[0] = '\0';
    req->own = s;
    if (req->change.id == NULL) {
        change_some(s, req, 0);
        return;
    }
    if (check_id(s, req, req->change.id) < 0)
        return;
    args_s(&args, verb(req->op));
    args_s(&args, req->change.id);
    streams_eval(s, &lua_streams_change, 0, STREAMS_CALL_MS, &args, on_changed, req);
}

/* ---- queues and statistics ---- */

static void on_paused(void *arg, int result, const redisReply *reply, const struct mandor_err *err)
{
    struct broker_req *req = arg;
    struct streams *s = req->own;

    (void)reply;
    if (result < 0)
        streams_fail(s, req, result, err);
    else
        streams_answer(s, req, 0);
}

void streams_pause(struct streams *s, struct broker_req *req)
{
    struct args args = { .count = 0 };

    req->own = s;
    args_s(&args, req->pause.queue);
    args_i(&args, req->pause.paused);
    streams_eval(s, &lua_streams_pause, REDIS_AGAIN, STREAMS_CALL_MS, &args, on_paused, req);
}

static json_t *queue_json(const redisReply *row)
{
    int64_t oldest = reply_int(reply_at(row, 8));
    json_t *queue = json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:o}", "waiting",
        (json_int_t)reply_int(reply_at(row, 2)), "delayed", (json_int_t)reply_int(reply_at(row, 3)),
        "active", (json_int_t)reply_int(reply_at(row, 4)), "completed",
        (json_int_t)reply_int(reply_at(row, 5)), "failed", (json_int_t)reply_int(reply_at(row, 6)),
        "cancelled", (json_int_t)reply_int(reply_at(row, 7)), "paused",
        (int)reply_int(reply_at(row, 1)), "oldest_waiting_ms",
        oldest >= 0 ? json_integer(oldest) : json_null());
    return queue;
}

static json_t *worker_json(const struct streams *s, const redisReply *row)
{
    char when[CLOCK_RFC3339_SIZE];
    json_t *queues = record_stored(reply_text(reply_at(row, 5)));

    return json_pack("{s:s, s:I, s:s, s:o, s:s, s:b}", "name", reply_text(reply_at(row, 0)), "pid",
                     (json_int_t)reply_int(reply_at(row, 7)), "host", reply_text(reply_at(row, 1)),
                     "queues", queues != NULL ? queues : json_array(), "since",
                     clock_rfc3339(reply_int(reply_at(row, 6)), when), "alive",
                     (int)worker_lives(s, row));
}

static json_t *server_json(const struct streams *s)
{
    return json_pack("{s:s, s:s, s:s?}", "name", s->url.text, "software", redis_software(s->redis),
                     "evicts", redis_evicts(s->redis));
}

static void on_stats(void *arg, int result, const redisReply *reply, const struct mandor_err *err)
{
    struct broker_req *req = arg;
    struct streams *s = req->own;
    const redisReply *rows = reply_at(reply, 0), *workers = reply_at(reply, 1);

    if (result < 0) {
        streams_fail(s, req, result, err);
        return;
    }
    SCOPED_JSON *queues = json_object(), *list = json_array();
    for (size_t i = 0; reply_at(rows, i) != NULL; i++)
        (void)json_object_set_new(queues, reply_text(reply_at(reply_at(rows, i), 0)),
                                  queue_json(reply_at(rows, i)));
    for (size_t i = 0; reply_at(workers, i) != NULL; i++)
        (void)json_array_append_new(list, worker_json(s, reply_at(workers, i)));
    req->stats.stats =
        json_pack("{s:O, s:O, s:o}", "queues", queues, "workers", list, "server", server_json(s));
    streams_answer(
        s, req,
        req->stats.stats != NULL ? 0 : err_set(&req->err, -ENOMEM, FAULT_HOST, "count jobs"));
}

void streams_stats(struct streams *s, struct broker_req *req)
{
    struct args args = { .count = 0 };

    req->stats.stats = NULL;
    req->own = s;
    streams_eval(s, &lua_streams_stats, REDIS_AGAIN, STREAMS_CALL_MS, &args, on_stats, req);
}
