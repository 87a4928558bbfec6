/* record.c - contract in record.h. */
#include "job/record.h"

#include <stdio.h>

#include "base/clock.h"
#include "base/hide.h"
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

static void set_int(json_t *object, const char *key, int64_t value, bool *ok)
{
    set_new(object, key, json_integer(value), ok);
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

/* ---- the text of an attempt ---- */

struct writer {
    struct buf *text;
    int r;     /* the first failure */
    bool more; /* the object that is being written has members */
};

static void put(struct writer *to, const char *text)
{
    if (to->r == 0)
        to->r = buf_adds(to->text, text);
}

static void put_key(struct writer *to, const char *key)
{
    put(to, to->more ? ",\"" : "\"");
    put(to, key);
    put(to, "\":");
    to->more = true;
}

static void put_text(struct writer *to, const char *key, const char *text)
{
    if (text == NULL)
        return;
    put_key(to, key);
    if (to->r == 0)
        to->r = json_write_text(to->text, text);
}

/* Words for people: what is not UTF-8 in them is shown as U+FFFD. */
static void put_words(struct writer *to, const char *key, const char *words, size_t len,
                      bool *ret_lossy)
{
    SCOPED_FREE char *text = json_utf8_lossy(words, len, ret_lossy);

    if (text == NULL)
        to->r = -ENOMEM;
    else
        put_text(to, key, text);
}

static void put_int(struct writer *to, const char *key, int64_t value)
{
    put_key(to, key);
    if (to->r == 0)
        to->r = json_write_int(to->text, value);
}

static void put_count(struct writer *to, const char *key, int64_t value)
{
    if (value != 0)
        put_int(to, key, value);
}

static void put_true(struct writer *to, const char *key, bool value)
{
    if (!value)
        return;
    put_key(to, key);
    put(to, "true");
}

static void put_json(struct writer *to, const char *key, const json_t *value)
{
    if (value == NULL || json_is_null(value))
        return;
    put_key(to, key);
    if (to->r == 0)
        to->r = json_write(to->text, value);
}

/* Begin an object as a member, and end it. */
static void open_object(struct writer *to, const char *key)
{
    put_key(to, key);
    put(to, "{");
    to->more = false;
}

static void close_object(struct writer *to)
{
    put(to, "}");
    to->more = true;
}

/* Paths too: they are bytes. */
static void put_bytes(struct writer *to, const char *key, const char *bytes)
{
    SCOPED_JSON *json = bytes != NULL ? json_bytes(bytes, strlen(bytes)) : NULL;

    if (bytes != NULL && json == NULL)
        to->r = -ENOMEM;
    put_json(to, key, json);
}

/* The tail as text; beside it, when that lost something, the bytes themselves. */
static void put_tail(struct writer *to, const struct record_stream *stream)
{
    bool lossy = false;

    if (stream->tail == NULL)
        return;
    put_words(to, "tail", stream->tail, stream->tail_len, &lossy);
    if (lossy) {
        SCOPED_FREE char *b64 = json_b64(stream->tail, stream->tail_len);
        if (b64 == NULL)
            to->r = -ENOMEM;
        put_text(to, "tail_b64", b64);
    }
}

static void put_stream(struct writer *to, const char *key, const struct record_stream *stream)
{
    char hash[17];

    if (stream == NULL)
        return;
    open_object(to, key);
    put_text(to, "sink", stream->sink);
    put_text(to, "path", stream->path);
    put_bytes(to, "target", stream->target);
    put_count(to, "bytes", stream->bytes);
    put_count(to, "frames", stream->frames);
    put_count(to, "pauses", stream->pauses);
    put_count(to, "paused_ms", stream->paused_ms);
    put_count(to, "discarded_bytes", stream->discarded_bytes);
    if (stream->has_xxh3) {
        (void)snprintf(hash, sizeof hash, "%016" PRIx64, stream->xxh3);
        put_text(to, "xxh3", hash);
    }
    put_tail(to, stream);
    put_true(to, "committed", stream->committed);
    put_json(to, "sinks", stream->sinks);
    close_object(to);
}

static void put_usage(struct writer *to, const struct verdict *verdict)
{
    open_object(to, "usage");
    put_count(to, "user_ms", verdict->user_us / 1000);
    put_count(to, "system_ms", verdict->system_us / 1000);
    put_count(to, "max_rss", verdict->max_rss_bytes);
    put_count(to, "wall_ms", verdict->wall_ms);
    close_object(to);
}

int record_attempt_text(const struct record_attempt *attempt, struct buf *text)
{
    const struct verdict *verdict = attempt->verdict;
    struct writer to = { .text = text };

    put(&to, "{");
    put_text(&to, "cause", cause_name(verdict->cause));
    if (verdict->exit_code >= 0) /* 0 is not none */
        put_int(&to, "exit_code", verdict->exit_code);
    if (verdict->signal > 0)
        put_int(&to, "signal", verdict->signal);
    put_true(&to, "core_dumped", verdict->core_dumped);
    put_true(&to, "forced", verdict->forced);
    if (verdict->cause == CAUSE_SPAWN)
        put_text(&to, "stage", spawn_stage_name(verdict->stage));
    const char *error = attempt->error != NULL ? attempt->error : verdict->error;
    if (error[0] != '\0')
        put_words(&to, "error", error, strlen(error), NULL);
    put_json(&to, "result", attempt->result);
    put_json(&to, "progress", attempt->progress);
    open_object(&to, "streams");
    put_stream(&to, "stdout", attempt->out);
    put_stream(&to, "stderr", attempt->err);
    close_object(&to);
    put_usage(&to, verdict);
    put_text(&to, "containment", attempt->containment);
    put_json(&to, "limits_enforced", attempt->limits_enforced);
    put_count(&to, "descendants_killed", verdict->descendants_killed);
    put(&to, "}");
    return to.r;
}

/* ---- the public form ---- */

/* A member of the attempt's text: what was left out is null, false or 0. */
enum blank { BLANK_NULL, BLANK_FALSE, BLANK_ZERO };

struct member {
    const char *key;
    enum blank blank;
};

static json_t *blank_json(enum blank blank)
{
    return blank == BLANK_NULL    ? json_null()
           : blank == BLANK_FALSE ? json_false()
                                  : json_integer(0);
}

static void set_member(json_t *object, const json_t *from, const struct member *member, bool *ok)
{
    json_t *value = json_object_get(from, member->key);

    set_new(object, member->key, value != NULL ? json_incref(value) : blank_json(member->blank),
            ok);
}

static json_t *stream_json(const json_t *stream)
{
    static const struct member members[] = {
        { "sink", BLANK_NULL },       { "path", BLANK_NULL },
        { "target", BLANK_NULL },     { "bytes", BLANK_ZERO },
        { "frames", BLANK_ZERO },     { "pauses", BLANK_ZERO },
        { "paused_ms", BLANK_ZERO },  { "discarded_bytes", BLANK_ZERO },
        { "xxh3", BLANK_NULL },       { "tail", BLANK_NULL },
        { "committed", BLANK_FALSE },
    };
    const char *b64 = json_string_value(json_object_get(stream, "tail_b64"));
    json_t *sinks = json_object_get(stream, "sinks");
    bool ok = true;

    if (!json_is_object(stream))
        return json_null();
    json_t *object = json_object();
    for (size_t i = 0; i < ARRAY_LEN(members); i++)
        set_member(object, stream, &members[i], &ok);
    if (b64 != NULL)
        set_text(object, "tail_b64", b64, &ok);
    if (sinks != NULL)
        set_new(object, "sinks", json_incref(sinks), &ok);
    return finish(object, ok);
}

static json_t *streams_json(const json_t *attempt)
{
    const json_t *streams = json_object_get(attempt, "streams");
    json_t *object = json_object();
    bool ok = true;

    set_new(object, "stdout", stream_json(json_object_get(streams, "stdout")), &ok);
    set_new(object, "stderr", stream_json(json_object_get(streams, "stderr")), &ok);
    return finish(object, ok);
}

static json_t *usage_json(const json_t *attempt)
{
    static const char *const keys[] = { "user_ms", "system_ms", "max_rss", "wall_ms" };
    json_t *object = json_object();
    bool ok = true;

    for (size_t i = 0; i < ARRAY_LEN(keys); i++)
        set_member(object, json_object_get(attempt, "usage"),
                   &(struct member){ keys[i], BLANK_ZERO }, &ok);
    return finish(object, ok);
}

/* NULL: no attempt has ended yet, and nothing is known. */
static void set_attempt(json_t *object, const json_t *attempt, bool *ok)
{
    static const char *const first[] = { "cause", "exit_code", "signal",
                                         "error", "result",    "progress" };
    static const char *const last[] = { "containment", "limits_enforced" };

    for (size_t i = 0; i < ARRAY_LEN(first); i++)
        set_member(object, attempt, &(struct member){ first[i], BLANK_NULL }, ok);
    set_new(object, "streams", attempt != NULL ? streams_json(attempt) : json_null(), ok);
    set_new(object, "usage", attempt != NULL ? usage_json(attempt) : json_null(), ok);
    for (size_t i = 0; i < ARRAY_LEN(last); i++)
        set_member(object, attempt, &(struct member){ last[i], BLANK_NULL }, ok);
    set_member(object, attempt,
               &(struct member){ "descendants_killed", attempt != NULL ? BLANK_ZERO : BLANK_NULL },
               ok);
}

/* A sink's URL, or a list of them.  NULL: no memory. */
static json_t *shown_urls(const json_t *value)
{
    json_t *list, *each;
    size_t i;

    if (json_is_string(value) && strstr(json_string_value(value), "://") != NULL) {
        SCOPED_FREE char *text = hide_password(json_string_value(value));
        return text != NULL ? json_string(text) : NULL;
    }
    if (!json_is_array(value))
        return json_incref((json_t *)(uintptr_t)value);
    list = json_array();
    json_array_foreach((json_t *)(uintptr_t)value, i, each) {
        if (json_array_append_new(list, shown_urls(each)) < 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

/* The job as it was added, without the passwords of its sinks and its source. */
static json_t *shown_spec(const json_t *spec)
{
    static const char *const keys[] = { "stdin", "stdout", "stderr" };
    json_t *copy = json_copy((json_t *)(uintptr_t)spec);

    for (size_t i = 0; copy != NULL && i < ARRAY_LEN(keys); i++) {
        const json_t *value = json_object_get(spec, keys[i]);
        if (value != NULL && json_object_set_new(copy, keys[i], shown_urls(value)) < 0) {
            json_decref(copy);
            return NULL;
        }
    }
    return copy;
}

json_t *record_json(const struct record *record)
{
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
    set_attempt(object, record->attempt_json, &ok);
    set_json(object, "history", record->history, &ok);
    if (json_is_object(record->spec))
        set_new(object, "spec", shown_spec(record->spec), &ok);
    else
        set_json(object, "spec", record->spec, &ok);
    return finish(object, ok);
}

json_t *record_stored(const char *text)
{
    json_t *json = NULL;

    if (text == NULL || json_parse(text, strlen(text), &json, NULL) < 0)
        return NULL;
    return json;
}

json_t *record_history_entry(int64_t attempt, int64_t ended_ms, const char *text)
{
    static const char *const keys[] = { "cause", "exit_code", "signal", "error" };
    char when[CLOCK_RFC3339_SIZE];
    SCOPED_JSON *json = record_stored(text);
    json_t *entry = json_pack("{s:I, s:s}", "attempt", (json_int_t)attempt, "finished_at",
                              clock_rfc3339(ended_ms, when));

    for (size_t i = 0; entry != NULL && i < ARRAY_LEN(keys); i++) {
        json_t *value = json_object_get(json, keys[i]);
        (void)json_object_set_new(entry, keys[i], value != NULL ? json_incref(value) : json_null());
    }
    return entry;
}
