/* bullmq_job.c - contract in bullmq_job.h. */
#include "broker/bullmq_job.h"

#include <math.h>
#include <stdio.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/json.h"
#include "job/verdict.h"

#define HISTORY_MAX 20

/* ---- options ---- */

/* Foreign producers write numbers as 1, 1.0, 1e3. */
int64_t bullmq_number(const json_t *object, const char *key, int64_t fallback)
{
    const json_t *value = json_object_get(object, key);

    if (json_is_integer(value))
        return json_integer_value(value);
    if (!json_is_real(value))
        return fallback;
    double real = json_real_value(value);
    return real >= -9e15 && real <= 9e15 ? (int64_t)real : fallback;
}

static struct bullmq_keep parse_keep(const json_t *value)
{
    struct bullmq_keep keep = { .given = true, .count = -1, .limit = BULLMQ_KEEP_LIMIT };

    if (json_is_true(value)) {
        keep.count = 0;
    } else if (json_is_number(value)) {
        keep.count = (int64_t)MIN(json_number_value(value), 9e15);
    } else if (json_is_object(value)) {
        keep.count = bullmq_number(value, "count", -1);
        keep.age_s = MAX(bullmq_number(value, "age", 0), (int64_t)0);
        keep.limit = bullmq_number(value, "limit", BULLMQ_KEEP_LIMIT);
    } else if (!json_is_false(value)) {
        keep.given = false;
    }
    keep.count = MAX(keep.count, (int64_t)-1);
    return keep;
}

static void parse_backoff(const json_t *value, struct bullmq_opts *opts)
{
    if (json_is_number(value)) {
        opts->backoff = BULLMQ_BACKOFF_FIXED;
        opts->backoff_ms = json_number_value(value);
        return;
    }
    const char *type = json_string_value(json_object_get(value, "type"));
    if (type == NULL)
        return;
    opts->backoff_ms = json_number_value(json_object_get(value, "delay"));
    opts->jitter = json_number_value(json_object_get(value, "jitter"));
    (void)snprintf(opts->backoff_type, sizeof opts->backoff_type, "%s", type);
    opts->backoff = str_eq(type, "fixed")         ? BULLMQ_BACKOFF_FIXED
                    : str_eq(type, "exponential") ? BULLMQ_BACKOFF_EXPONENTIAL
                                                  : BULLMQ_BACKOFF_UNKNOWN;
}

int bullmq_opts_parse(const char *text, size_t len, struct bullmq_opts *ret, struct mandor_err *err)
{
    json_error_t why;

    *ret = (struct bullmq_opts){ .stack_limit = -1, .completed.count = -1, .failed.count = -1 };
    ret->json = len == 0 ? json_object() : json_load_foreign(text, len, &why);
    if (ret->json == NULL)
        return err_set(err, -EINVAL, FAULT_CALLER, "the job's opts are no JSON: %s at byte %d",
                       len == 0 ? "out of memory" : why.text, len == 0 ? 0 : why.position);
    if (!json_is_object(ret->json) && (!json_is_array(ret->json) || json_array_size(ret->json) > 0))
        return err_set(err, -EINVAL, FAULT_CALLER, "the job's opts are no JSON object");
    /* An empty object is an empty array after a turn through Lua. */
    ret->attempts = bullmq_number(ret->json, "attempts", 0);
    ret->stack_limit = bullmq_number(ret->json, "stackTraceLimit", -1);
    ret->keep_logs = bullmq_number(ret->json, "kl", 0);
    ret->priority = bullmq_number(ret->json, "priority", 0);
    ret->prev_ms = bullmq_number(ret->json, "prevMillis", 0);
    ret->lifo = json_is_true(json_object_get(ret->json, "lifo"));
    ret->repeat = json_object_get(ret->json, "repeat");
    parse_backoff(json_object_get(ret->json, "backoff"), ret);
    ret->completed = parse_keep(json_object_get(ret->json, "removeOnComplete"));
    ret->failed = parse_keep(json_object_get(ret->json, "removeOnFail"));
    return 0;
}

void bullmq_opts_done(struct bullmq_opts *opts)
{
    json_decref(opts->json);
    opts->json = opts->repeat = NULL;
}

int64_t bullmq_backoff_ms(const struct bullmq_opts *opts, int64_t made, double random01)
{
    double delay = opts->backoff_ms;

    if (opts->backoff == BULLMQ_BACKOFF_UNKNOWN)
        return -1;
    if (opts->backoff == BULLMQ_BACKOFF_NONE || !(delay > 0))
        return 0;
    if (opts->backoff == BULLMQ_BACKOFF_EXPONENTIAL)
        delay = round(pow(2, (double)(made - 1)) * delay);
    if (opts->jitter > 0 && opts->jitter <= 1)
        delay = floor(random01 * delay * opts->jitter + delay * (1 - opts->jitter));
    return (int64_t)MIN(delay, 3.1536e12); /* a hundred years */
}

/* ---- how it failed ---- */

char *bullmq_stack(const char *old, const char *entry, int64_t limit)
{
    SCOPED_JSON *list = old[0] != '\0' ? json_loads(old, JSON_ALLOW_NUL, NULL) : NULL;
    SCOPED_FREE char *text = json_utf8_lossy(entry, strlen(entry), NULL);

    if (!json_is_array(list)) {
        json_decref(list);
        list = json_array();
    }
    if (text == NULL || json_array_append_new(list, json_string(text)) < 0)
        return NULL;
    while (limit >= 0 && json_array_size(list) > (size_t)limit)
        (void)json_array_remove(list, 0);
    return json_text(list);
}

char *bullmq_trace(const char *reason, const char *record)
{
    SCOPED_JSON *attempt = record != NULL ? json_loads(record, JSON_ALLOW_NUL, NULL) : NULL;
    const json_t *streams = json_object_get(attempt, "streams");
    const json_t *tail = json_object_get(json_object_get(streams, "stderr"), "tail");
    SCOPED_BUF trace = { 0 };

    if (buf_adds(&trace, reason) < 0)
        return NULL;
    const char *text = json_string_value(tail);
    size_t len = text != NULL ? strlen(text) : 0;
    if (len > BULLMQ_STACK_BYTES) {
        text += len - BULLMQ_STACK_BYTES;
        while (((unsigned char)*text & 0xc0) == 0x80)
            text++;
    }
    if (len > 0 && buf_addf(&trace, "\n%s", text) < 0)
        return NULL;
    return buf_steal(&trace);
}

/* ---- names ---- */

int bullmq_split_id(const char *text, char **ret_queue, const char **ret_id)
{
    const char *colon = strchr(text, ':');

    if (colon == NULL || colon == text || colon[1] == '\0')
        return -EINVAL;
    *ret_queue = strndup(text, (size_t)(colon - text));
    *ret_id = colon + 1;
    return *ret_queue != NULL ? 0 : -ENOMEM;
}

char *bullmq_client_name(const char *prefix, const char *queue, const char *name)
{
    SCOPED_FREE char *b64 = json_b64(queue, strlen(queue));
    SCOPED_BUF text = { 0 };

    if (b64 == NULL || buf_addf(&text, "%s:%s", prefix, b64) < 0 ||
        (name != NULL && buf_addf(&text, ":w:%s", name) < 0))
        return NULL;
    return buf_steal(&text);
}

/* ---- the record ---- */

json_t *bullmq_record_parse(const char *text, size_t len)
{
    json_t *json = len > 0 ? json_loadb(text, len, JSON_ALLOW_NUL, NULL) : NULL;

    if (json_is_object(json))
        return json;
    json_decref(json);
    return NULL;
}

/* What later readers want of an attempt that was followed by another. */
static json_t *brief(const json_t *record)
{
    static const char *const keys[] = { "cause", "exit_code", "signal", "error" };
    const json_t *last = json_object_get(record, "last");
    char text[CLOCK_RFC3339_SIZE];
    json_t *entry = json_pack("{s:I}", "attempt", bullmq_number(record, "attempt", 0));

    for (size_t i = 0; i < ARRAY_LEN(keys); i++)
        (void)json_object_set(entry, keys[i], json_object_get(last, keys[i]));
    (void)json_object_set_new(
        entry, "finished_at",
        json_string(clock_rfc3339(bullmq_number(record, "finished", 0), text)));
    return entry;
}

static json_t *history(const char *before)
{
    SCOPED_JSON *record = bullmq_record_parse(before, strlen(before));
    json_t *list = json_deep_copy(json_object_get(record, "history"));

    if (!json_is_array(list)) {
        json_decref(list);
        list = json_array();
    }
    if (json_object_get(record, "last") != NULL)
        (void)json_array_append_new(list, brief(record));
    while (json_array_size(list) > HISTORY_MAX)
        (void)json_array_remove(list, 0);
    return list;
}

/* ,"key": bytes as JSON */
static int add_output(struct buf *text, const char *key, const void *bytes, size_t len)
{
    if (bytes == NULL)
        return 0;
    SCOPED_JSON *json = json_bytes(bytes, len);
    int r = buf_addf(text, ",\"%s\":", key);
    return r < 0 ? r : json_write(text, json);
}

/* What was there before is read again, and only then is there anything to parse. */
static int add_history(struct buf *text, const char *before)
{
    if (before[0] == '\0')
        return 0;
    SCOPED_JSON *list = history(before);
    int r = buf_adds(text, ",\"history\":");
    return r < 0 ? r : json_write(text, list);
}

char *bullmq_record_text(const struct bullmq_record *record)
{
    SCOPED_BUF text = { 0 };

    int r = buf_adds(&text, "{\"worker\":");
    if (r == 0)
        r = json_write_text(&text, record->worker);
    if (r == 0)
        r = buf_addf(&text,
                     ",\"attempt\":%" PRId64 ",\"state\":\"%s\",\"started\":%" PRId64
                     ",\"finished\":%" PRId64,
                     record->attempt, job_state_name(record->state), record->started_ms,
                     record->finished_ms);
    if (r == 0 && record->phase != NULL)
        r = buf_addf(&text, ",\"phase\":\"%s\"", record->phase);
    if (r == 0 && record->put_backs > 0)
        r = buf_addf(&text, ",\"put_backs\":%" PRId64, record->put_backs);
    if (r == 0 && record->last != NULL)
        r = buf_addf(&text, ",\"last\":%s", record->last);
    if (r == 0)
        r = add_history(&text, record->before);
    if (r == 0)
        r = add_output(&text, "out", record->out, record->out_len);
    if (r == 0)
        r = add_output(&text, "err", record->errout, record->errout_len);
    if (r == 0)
        r = buf_adds(&text, "}");
    return r < 0 ? NULL : buf_steal(&text);
}

/* ---- schedulers ---- */

char *bullmq_repeat_opts(const struct bullmq_opts *opts, int64_t count)
{
    static const char *const written_by_script[] = { "jobId", "delay", "timestamp", "prevMillis",
                                                     "repeatJobKey" };
    SCOPED_JSON *next = json_deep_copy(opts->json);
    json_t *repeat = json_object_get(next, "repeat");

    if (next == NULL || !json_is_object(repeat) ||
        json_object_set_new(repeat, "count", json_integer(count)) < 0)
        return NULL;
    for (size_t i = 0; i < ARRAY_LEN(written_by_script); i++)
        (void)json_object_del(next, written_by_script[i]);

    char *text = json_text(next);
    if (text != NULL)
        text[strlen(text) - 1] = '\0';
    return text;
}
