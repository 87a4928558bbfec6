/* test_record.c - the record of a job: all keys, always. */
#include "job/record.h"

#include "base/json.h"
#include "lib/unit.h"

static const char *const record_keys[] = {
    "id",
    "queue",
    "state",
    "phase",
    "attempt",
    "attempts_used",
    "attempts",
    "priority",
    "created_at",
    "started_at",
    "finished_at",
    "due_at",
    "worker",
    "unique",
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
    "history",
    "spec",
};
static const char *text_at(const json_t *json, const char *a, const char *b, const char *c)
{
    json_t *at = json_object_get(json, a);

    at = b != NULL ? json_object_get(at, b) : at;
    at = c != NULL ? json_object_get(at, c) : at;
    return json_string_value(at);
}

/* The text of an attempt, parsed: what a broker gives back. */
static json_t *attempt_json(const struct record_attempt *attempt)
{
    SCOPED_BUF text = { 0 };
    json_t *json = NULL;

    ck_assert_int_eq(record_attempt_text(attempt, &text), 0);
    ck_assert_int_eq(json_parse(text.data, text.len, &json, NULL), 0);
    return json;
}

/* The record of an ended job with this attempt. */
static json_t *whole_record(const struct record_attempt *attempt)
{
    SCOPED_JSON *ended = attempt_json(attempt);
    json_t *whole = record_json(&(struct record){ .id = "17",
                                                  .queue = "q",
                                                  .state = JOB_FAILED,
                                                  .attempt = 1,
                                                  .attempt_json = ended,
                                                  .finished_ms = 1769860800123 });

    for (size_t i = 0; i < ARRAY_LEN(record_keys); i++)
        ck_assert_msg(json_object_get(whole, record_keys[i]) != NULL, "no %s", record_keys[i]);
    return whole;
}

TEST(a_waiting_job_has_every_key_and_null_where_nothing_is)
{
    struct record record = {
        .id = "17", .queue = "q", .state = JOB_WAITING, .attempts = 3, .created_ms = 1769860800123
    };
    json_t *json = record_json(&record);

    for (size_t i = 0; i < ARRAY_LEN(record_keys); i++)
        ck_assert_msg(json_object_get(json, record_keys[i]) != NULL, "no %s", record_keys[i]);
    ck_assert_str_eq(text_at(json, "created_at", NULL, NULL), "2026-01-31T12:00:00.123Z");
    ck_assert_str_eq(text_at(json, "state", NULL, NULL), "waiting");
    static const char *const nulls[] = { "phase",   "started_at", "finished_at",
                                         "due_at",  "worker",     "unique",
                                         "cause",   "exit_code",  "signal",
                                         "error",   "streams",    "usage",
                                         "history", "spec",       "descendants_killed" };
    for (size_t i = 0; i < ARRAY_LEN(nulls); i++)
        ck_assert_msg(json_is_null(json_object_get(json, nulls[i])), "%s is there", nulls[i]);
    json_decref(json);
}

TEST(an_attempt_tells_how_it_ended_and_where_its_bytes_are)
{
    struct verdict verdict = { .cause = CAUSE_SIGNAL,
                               .exit_code = -1,
                               .signal = 9,
                               .core_dumped = true,
                               .forced = true,
                               .user_us = 1999,
                               .system_us = 2500,
                               .max_rss_bytes = 4096,
                               .wall_ms = 77,
                               .descendants_killed = 2,
                               .error = "killed by signal 9 \xff" };
    struct record_stream out = {
        .sink = "file", .path = "splice", .target = "/out/17", .bytes = 5, .committed = true
    };
    struct record_stream errout = { .sink = "auto",
                                    .path = "ring",
                                    .bytes = 3,
                                    .frames = 1,
                                    .pauses = 2,
                                    .paused_ms = 9,
                                    .discarded_bytes = 4,
                                    .has_xxh3 = true,
                                    .xxh3 = 0xabc,
                                    .tail = "a\xff"
                                            "b",
                                    .tail_len = 3 };
    json_t *result = json_pack("{s:i}", "frames", 12);
    struct record_attempt attempt = {
        .verdict = &verdict, .out = &out, .err = &errout, .containment = "cgroup", .result = result
    };
    json_t *json = whole_record(&attempt);

    ck_assert_str_eq(text_at(json, "cause", NULL, NULL), "signal");
    ck_assert(json_is_null(json_object_get(json, "exit_code")));
    ck_assert_int_eq(json_integer_value(json_object_get(json, "signal")), 9);
    ck_assert_str_eq(text_at(json, "error", NULL, NULL), "killed by signal 9 \xef\xbf\xbd");
    ck_assert(json_equal(json_object_get(json, "result"), result));
    ck_assert(json_is_null(json_object_get(json, "progress")));

    const json_t *streams = json_object_get(json, "streams"),
                 *usage = json_object_get(json, "usage");
    const json_t *first = json_object_get(streams, "stdout"),
                 *second = json_object_get(streams, "stderr");
    ck_assert(json_is_null(json_object_get(first, "xxh3")) &&
              json_is_null(json_object_get(first, "tail")));
    ck_assert_ptr_null(json_object_get(first, "tail_b64"));
    ck_assert_str_eq(text_at(first, "target", NULL, NULL), "/out/17");
    ck_assert(json_is_true(json_object_get(first, "committed")));
    ck_assert_str_eq(text_at(second, "xxh3", NULL, NULL), "0000000000000abc");
    ck_assert_str_eq(text_at(second, "tail", NULL, NULL), "a\xef\xbf\xbd"
                                                          "b");
    ck_assert_str_eq(text_at(second, "tail_b64", NULL, NULL), "Yf9i");
    ck_assert_int_eq(json_integer_value(json_object_get(second, "paused_ms")), 9);
    ck_assert_int_eq(json_integer_value(json_object_get(usage, "user_ms")), 1);
    ck_assert_int_eq(json_integer_value(json_object_get(usage, "system_ms")), 2);
    ck_assert_int_eq(json_integer_value(json_object_get(usage, "max_rss")), 4096);

    ck_assert_int_eq(json_integer_value(json_object_get(json, "descendants_killed")), 2);
    ck_assert_str_eq(text_at(json, "finished_at", NULL, NULL), "2026-01-31T12:00:00.123Z");
    json_decref(json);
    json_decref(result);
}

TEST(a_start_that_failed_names_its_stage_and_has_no_streams)
{
    struct verdict verdict = { .cause = CAUSE_SPAWN,
                               .exit_code = -1,
                               .stage = STAGE_CHDIR,
                               .spawn_errno = ENOENT,
                               .error = "chdir '/x': No such file or directory" };
    json_t *text = attempt_json(&(struct record_attempt){ .verdict = &verdict });
    json_t *json = whole_record(&(struct record_attempt){ .verdict = &verdict });

    ck_assert_str_eq(text_at(text, "stage", NULL, NULL), "chdir");
    json_decref(text);
    ck_assert(json_is_null(json_object_get(json_object_get(json, "streams"), "stdout")));
    ck_assert(json_is_null(json_object_get(json, "containment")));
    json_decref(json);
}

TEST(an_exit_of_zero_is_not_an_absent_one)
{
    struct verdict verdict = { .cause = CAUSE_EXIT, .exit_code = 0 };
    struct record_stream out = { .sink = "auto", .path = "ring", .tail = "", .tail_len = 0 };
    json_t *json = whole_record(&(struct record_attempt){ .verdict = &verdict, .out = &out });

    ck_assert_int_eq(json_integer_value(json_object_get(json, "exit_code")), 0);
    ck_assert(json_is_integer(json_object_get(json, "exit_code")));
    ck_assert(json_is_null(json_object_get(json, "signal")));
    ck_assert(json_is_null(json_object_get(json, "error")));
    ck_assert_str_eq(text_at(json, "streams", "stdout", "tail"), "");
    json_decref(json);
}

TEST(passwords_of_sinks_are_not_shown)
{
    SCOPED_JSON *spec =
        json_loads("{\"exec\": [\"http://u:pw@h\"], \"stdin\": \"inline:a@b\", \"stdout\":"
                   " [\"drop=1M:redis://:pw@h?key=k\", \"s3://b/a@b\", \"http://h:1/@me\"],"
                   " \"stderr\": \"https://u:p/w@h/x\"}",
                   0, NULL);
    SCOPED_JSON *wanted =
        json_loads("{\"exec\": [\"http://u:pw@h\"], \"stdin\": \"inline:a@b\", \"stdout\":"
                   " [\"drop=1M:redis://:***@h?key=k\", \"s3://b/a@b\", \"http://h:1/@me\"],"
                   " \"stderr\": \"https://u:***@h/x\"}",
                   0, NULL);
    SCOPED_JSON *json = record_json(&(struct record){ .id = "1", .queue = "q", .spec = spec });
    ck_assert(json_equal(json_object_get(json, "spec"), wanted));
}

TEST(what_is_null_false_or_zero_is_not_stored_and_yet_said)
{
    struct verdict verdict = { .cause = CAUSE_EXIT, .exit_code = 0 };
    struct record_stream out = { .sink = "auto", .path = "ring" };
    struct record_attempt attempt = { .verdict = &verdict, .out = &out };
    SCOPED_BUF text = { 0 };

    ck_assert_int_eq(record_attempt_text(&attempt, &text), 0);
    ck_assert_str_eq(text.data, "{\"cause\":\"exit\",\"exit_code\":0,\"streams\":{\"stdout\":"
                                "{\"sink\":\"auto\",\"path\":\"ring\"}},\"usage\":{}}");

    json_t *json = whole_record(&attempt);
    const json_t *streams = json_object_get(json, "streams");
    const json_t *stream = json_object_get(streams, "stdout");
    static const char *const zeros[] = { "bytes", "frames", "pauses", "paused_ms",
                                         "discarded_bytes" };
    for (size_t i = 0; i < ARRAY_LEN(zeros); i++)
        ck_assert(json_is_integer(json_object_get(stream, zeros[i])) &&
                  json_integer_value(json_object_get(stream, zeros[i])) == 0);
    ck_assert(json_is_false(json_object_get(stream, "committed")));
    ck_assert(json_is_null(json_object_get(stream, "target")));
    ck_assert(json_is_null(json_object_get(streams, "stderr")));
    ck_assert_int_eq(json_integer_value(json_object_get(json_object_get(json, "usage"), "wall_ms")),
                     0);
    ck_assert(json_is_integer(json_object_get(json, "descendants_killed")));
    json_decref(json);
}

UNIT_MAIN("record")
