/* bullmq_found.c - contract in bullmq_found.h. */
#include "broker/bullmq_found.h"

#include "base/buf.h"
#include "base/json.h"
#include "broker/bullmq_job.h"
#include "job/record.h"

enum { FOUND_ID, FOUND_STATE, FOUND_SCORE, FOUND_FIELDS };

static const char *text_at(const redisReply *job, size_t index, size_t *ret_len)
{
    const redisReply *element = index < job->elements ? job->element[index] : NULL;
    bool text = element != NULL && element->str != NULL;

    if (ret_len != NULL)
        *ret_len = text ? element->len : 0;
    return text ? element->str : "";
}

/* One field of the job's hash; "" and *ret_len 0 when it has none. */
static const char *field_of(const redisReply *job, const char *field, size_t *ret_len)
{
    for (size_t i = FOUND_FIELDS; i + 1 < job->elements; i += 2)
        if (str_eq(text_at(job, i, NULL), field))
            return text_at(job, i + 1, ret_len);
    if (ret_len != NULL)
        *ret_len = 0;
    return "";
}

static int64_t number(const redisReply *job, const char *field)
{
    return strtoll(field_of(job, field, NULL), NULL, 10);
}

/* Any JSON of the hash, or NULL. */
static json_t *value(const redisReply *job, const char *field)
{
    size_t len;
    const char *text = field_of(job, field, &len);
    json_error_t why;

    return len > 0 ? json_load_foreign(text, len, &why) : NULL;
}

json_t *bullmq_found_record(const redisReply *job)
{
    size_t len;
    const char *text = field_of(job, "mandor", &len);

    return bullmq_record_parse(text, len);
}

enum job_state bullmq_found_state(const redisReply *job, const json_t *record)
{
    const char *state = text_at(job, FOUND_STATE, NULL);
    const char *ours = json_string_value(json_object_get(record, "state"));

    if (str_eq(state, "completed"))
        return JOB_COMPLETED;
    if (str_eq(state, "failed"))
        return ours != NULL && str_eq(ours, "cancelled") ? JOB_CANCELLED : JOB_FAILED;
    if (str_eq(state, "delayed"))
        return JOB_DELAYED;
    return str_eq(state, "active") ? JOB_ACTIVE : JOB_WAITING;
}

/* What is known of the last attempt: by our own record, or, when a worker of another kind ran it, by what BullMQ has. */
static json_t *last_attempt(const redisReply *job, const json_t *record, enum job_state state)
{
    json_t *last = json_deep_copy(json_object_get(record, "last"));
    json_t *progress = value(job, "progress");
    const char *reason = field_of(job, "failedReason", NULL);

    if (last == NULL && (last = json_object()) == NULL) {
        json_decref(progress);
        return NULL;
    }
    if (json_object_get(last, "cause") == NULL && reason[0] != '\0' && state != JOB_COMPLETED)
        (void)json_object_set_new(last, "error", json_bytes(reason, strlen(reason)));
    if (state == JOB_COMPLETED) {
        json_t *result = value(job, "returnvalue");
        if (result != NULL)
            (void)json_object_set_new(last, "result", result);
    }
    if (progress != NULL)
        (void)json_object_set_new(last, "progress", progress);
    return last;
}

json_t *bullmq_found_json(const redisReply *job, const char *queue)
{
    SCOPED_JSON *record = bullmq_found_record(job);
    enum job_state state = bullmq_found_state(job, record);
    SCOPED_JSON *last = last_attempt(job, record, state), *data = value(job, "data");
    const char *deid = field_of(job, "deid", NULL), *found = text_at(job, FOUND_STATE, NULL);
    struct bullmq_opts opts;
    SCOPED_BUF id = { 0 };
    size_t len;
    const char *text = field_of(job, "opts", &len);

    if (buf_addf(&id, "%s:%s", queue, text_at(job, FOUND_ID, NULL)) < 0)
        return NULL;
    int r = bullmq_opts_parse(text, len, &opts, NULL);
    struct record view = {
        .id = id.data,
        .queue = queue,
        .state = state,
        .phase = state == JOB_ACTIVE ? json_string_value(json_object_get(record, "phase"))
                 : str_eq(found, "waiting-children") ? found
                                                     : NULL,
        .attempt = number(job, "ats"),
        .attempts_used = number(job, "atm"),
        .attempts = r == 0 ? MAX(opts.attempts, (int64_t)1) : 1,
        .priority = number(job, "priority"),
        .created_ms = number(job, "timestamp"),
        .started_ms = number(job, "processedOn"),
        .finished_ms = number(job, "finishedOn"),
        .due_ms = state == JOB_DELAYED
                      ? (int64_t)(strtod(text_at(job, FOUND_SCORE, NULL), NULL) / 4096)
                      : 0,
        .worker = json_string_value(json_object_get(record, "worker")),
        .unique = deid[0] != '\0' ? deid : NULL,
        .cancel_requested = json_is_true(json_object_get(record, "cancel_requested")),
        .attempt_json = last,
        .history = json_object_get(record, "history"),
        .spec = data,
    };
    json_t *json = record_json(&view);
    bullmq_opts_done(&opts);
    return json;
}

const char *const *bullmq_states(int state, size_t *ret_count)
{
    static const char *const all[] = { "active",           "wait",    "paused",    "prioritized",
                                       "waiting-children", "delayed", "completed", "failed" };
    static const struct {
        size_t from, count;
    } ranges[JOB_STATES] = {
        [JOB_WAITING] = { 1, 4 },   [JOB_DELAYED] = { 5, 1 }, [JOB_ACTIVE] = { 0, 1 },
        [JOB_COMPLETED] = { 6, 1 }, [JOB_FAILED] = { 7, 1 },  [JOB_CANCELLED] = { 7, 1 },
    };

    *ret_count = state < 0 ? ARRAY_LEN(all) : ranges[state].count;
    return all + (state < 0 ? 0 : ranges[state].from);
}
