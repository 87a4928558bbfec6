/* record.c - contract in record.h. */
#include "job/record.h"

#include <stdio.h>

#include "base/clock.h"
#include "base/json.h"

/* Each setter puts a value or null and remembers in *ok whether all went well. */

static void set_new(json_t *object, const char *key, json_t *adopt_value, bool *ok)
{
    if (json_object_set_new(object, key, adopt_value) < 0)
        *ok = false;
}

static void set_text(json_t *object, const char *key, const char *text, bool *ok)
{
    set_new(object, key, text != NULL ? json_bytes(text, strlen(text)) : json_null(), ok);
}

/* Words for people: what is not UTF-8 in them is shown as U+FFFD. */
static void set_words(json_t *object, const char *key, const char *words, bool *ok)
{
    SCOPED_FREE char *text = json_utf8_lossy(words, strlen(words), NULL);

    set_new(object, key, text != NULL ? json_string(text) : NULL, ok);
}

static void set_int(json_t *object, const char *key, int64_t value, bool *ok)
{
    set_new(object, key, json_integer(value), ok);
}

static void set_int_if(json_t *object, const char *key, bool present, int64_t value, bool *ok)
{
    set_new(object, key, present ? json_integer(value) : json_null(), ok);
}

static void set_bool(json_t *object, const char *key, bool value, bool *ok)
{
    set_new(object, key, json_boolean(value), ok);
}

static void set_time(json_t *object, const char *key, int64_t wall_ms, bool *ok)
{
    char text[CLOCK_RFC3339_SIZE];

    set_text(object, key, wall_ms != 0 ? clock_rfc3339(wall_ms, text) : NULL, ok);
}

/* A borrowed value, shared by reference count. */
static void set_json(json_t *object, const char *key, const json_t *value, bool *ok)
{
    set_new(object, key, value != NULL ? json_incref((json_t *)value) : json_null(), ok);
}

static json_t *finish(json_t *object, bool ok)
{
    if (object != NULL && ok)
        return object;
    json_decref(object);
    return NULL;
}

/* The tail as text; beside it, when that lost something, the bytes themselves. */
static void set_tail(json_t *object, const struct record_stream *stream, bool *ok)
{
    bool lossy = false;
    SCOPED_FREE char *text = NULL;

    if (stream->tail == NULL) {
        set_text(object, "tail", NULL, ok);
        return;
    }
    text = json_utf8_lossy(stream->tail, stream->tail_len, &lossy);
    set_new(object, "tail", text != NULL ? json_string(text) : NULL, ok);
    if (lossy) {
        SCOPED_FREE char *b64 = json_b64(stream->tail, stream->tail_len);
        set_new(object, "tail_b64", b64 != NULL ? json_string(b64) : NULL, ok);
    }
}

static json_t *stream_json(const struct record_stream *stream)
{
    char hash[17];
    bool ok = true;

    if (stream == NULL)
        return json_null();
    json_t *object = json_object();
    (void)snprintf(hash, sizeof hash, "%016" PRIx64, stream->xxh3);
    set_text(object, "sink", stream->sink, &ok);
    set_text(object, "path", stream->path, &ok);
    set_text(object, "target", stream->target, &ok);
    set_int(object, "bytes", stream->bytes, &ok);
    set_int(object, "frames", stream->frames, &ok);
    set_int(object, "pauses", stream->pauses, &ok);
    set_int(object, "paused_ms", stream->paused_ms, &ok);
    set_int(object, "discarded_bytes", stream->discarded_bytes, &ok);
    set_text(object, "xxh3", stream->has_xxh3 ? hash : NULL, &ok);
    set_tail(object, stream, &ok);
    set_bool(object, "committed", stream->committed, &ok);
    return finish(object, ok);
}

static json_t *streams_json(const struct record_attempt *attempt)
{
    json_t *object = json_object();
    bool ok = true;

    set_new(object, "stdout", stream_json(attempt->out), &ok);
    set_new(object, "stderr", stream_json(attempt->err), &ok);
    return finish(object, ok);
}

static json_t *usage_json(const struct verdict *verdict)
{
    json_t *object = json_object();
    bool ok = true;

    set_int(object, "user_ms", verdict->user_us / 1000, &ok);
    set_int(object, "system_ms", verdict->system_us / 1000, &ok);
    set_int(object, "max_rss", verdict->max_rss_bytes, &ok);
    set_int(object, "wall_ms", verdict->wall_ms, &ok);
    return finish(object, ok);
}

json_t *record_attempt_json(const struct record_attempt *attempt)
{
    const struct verdict *verdict = attempt->verdict;
    bool spawn = verdict->cause == CAUSE_SPAWN;
    json_t *object = json_object();
    bool ok = true;

    set_text(object, "cause", cause_name(verdict->cause), &ok);
    set_int_if(object, "exit_code", verdict->exit_code >= 0, verdict->exit_code, &ok);
    set_int_if(object, "signal", verdict->signal > 0, verdict->signal, &ok);
    set_bool(object, "core_dumped", verdict->core_dumped, &ok);
    set_bool(object, "forced", verdict->forced, &ok);
    set_text(object, "stage", spawn ? spawn_stage_name(verdict->stage) : NULL, &ok);
    if (verdict->error[0] != '\0')
        set_words(object, "error", verdict->error, &ok);
    else
        set_text(object, "error", NULL, &ok);
    set_json(object, "result", attempt->result, &ok);
    set_json(object, "progress", attempt->progress, &ok);
    set_new(object, "streams", streams_json(attempt), &ok);
    set_new(object, "usage", usage_json(verdict), &ok);
    set_text(object, "containment", attempt->containment, &ok);
    set_json(object, "limits_enforced", attempt->limits_enforced, &ok);
    set_int(object, "descendants_killed", verdict->descendants_killed, &ok);
    return finish(object, ok);
}

json_t *record_json(const struct record *record)
{
    static const char *const of_attempt[] = {
        "cause",
        "exit_code",
        "signal",
        "error",
        "result",
        "progress",
        "streams",
        "usage",
        "containment",
        "limits_enforced",
        "descendants_killed",
    };
    json_t *object = json_object();
    bool ok = true;

    set_text(object, "id", record->id, &ok);
    set_text(object, "queue", record->queue, &ok);
    set_text(object, "state", job_state_name(record->state), &ok);
    set_text(object, "phase", record->phase, &ok);
    set_int(object, "attempt", record->attempt, &ok);
    set_int(object, "attempts_used", record->attempts_used, &ok);
    set_int(object, "attempts", record->attempts, &ok);
    set_int(object, "priority", record->priority, &ok);
    set_time(object, "created_at", record->created_ms, &ok);
    set_time(object, "started_at", record->started_ms, &ok);
    set_time(object, "finished_at", record->finished_ms, &ok);
    set_time(object, "due_at", record->due_ms, &ok);
    set_text(object, "worker", record->worker, &ok);
    set_text(object, "unique", record->unique, &ok);
    set_bool(object, "cancel_requested", record->cancel_requested, &ok);
    for (size_t i = 0; i < ARRAY_LEN(of_attempt); i++)
        set_json(object, of_attempt[i], json_object_get(record->attempt_json, of_attempt[i]), &ok);
    set_json(object, "history", record->history, &ok);
    set_json(object, "spec", record->spec, &ok);
    return finish(object, ok);
}
