/* test_bullmq.c - BullMQ's forms: options, backoff, stack traces, records. */
#include "broker/bullmq_job.h"

#include "base/json.h"
#include "lib/unit.h"

static struct mandor_err err;

static struct bullmq_opts parse(const char *text)
{
    struct bullmq_opts opts;
    ck_assert_msg(bullmq_opts_parse(text, strlen(text), &opts, &err) == 0, "%s: %s", text, err.msg);
    return opts;
}

TEST(options_come_in_every_form)
{
    struct bullmq_opts opts = parse(
        "{\"attempts\":3.0,\"backoff\":1e3,\"removeOnComplete\":true,\"removeOnFail\":{\"age\":60,"
        "\"count\":5},\"kl\":2,\"stackTraceLimit\":0,\"lifo\":true}");
    ck_assert_int_eq(opts.attempts, 3);
    ck_assert_int_eq(bullmq_backoff_ms(&opts, 5, 0), 1000);
    ck_assert(opts.completed.given && opts.completed.count == 0);
    ck_assert(opts.failed.count == 5 && opts.failed.age_s == 60 &&
              opts.failed.limit == BULLMQ_KEEP_LIMIT);
    ck_assert(opts.keep_logs == 2 && opts.stack_limit == 0 && opts.lifo);
    bullmq_opts_done(&opts);

    opts = parse("{\"removeOnComplete\":false,\"removeOnFail\":7}");
    ck_assert(opts.completed.given && opts.completed.count == -1 && opts.failed.count == 7);
    bullmq_opts_done(&opts);

    opts = parse("[]"); /* what Lua makes of an empty object */
    ck_assert(opts.attempts == 0 && !opts.completed.given && opts.stack_limit == -1);
    bullmq_opts_done(&opts);
    opts = parse("");
    ck_assert_int_eq(opts.attempts, 0);
    bullmq_opts_done(&opts);
}

TEST(broken_options_are_refused)
{
    static const char *const wrong[] = { "{", "nonsense", "[1]", "\"text\"", "{\"a\":}" };

    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        struct bullmq_opts opts;
        ck_assert_int_eq(bullmq_opts_parse(wrong[i], strlen(wrong[i]), &opts, &err), -EINVAL);
        bullmq_opts_done(&opts);
    }
}

TEST(backoff_grows_and_jitters_as_bullmq_does)
{
    struct bullmq_opts opts = parse("{\"backoff\":{\"type\":\"exponential\",\"delay\":100}}");
    ck_assert_int_eq(bullmq_backoff_ms(&opts, 1, 0.5), 100);
    ck_assert_int_eq(bullmq_backoff_ms(&opts, 3, 0.5), 400);
    ck_assert_int_le(bullmq_backoff_ms(&opts, 1000, 0.5), INT64_C(3153600000000));
    bullmq_opts_done(&opts);

    opts = parse("{\"backoff\":{\"type\":\"fixed\",\"delay\":100,\"jitter\":0.5}}");
    ck_assert_int_eq(bullmq_backoff_ms(&opts, 4, 0), 50);
    ck_assert_int_eq(bullmq_backoff_ms(&opts, 4, 0.999), 99);
    bullmq_opts_done(&opts);

    opts = parse("{\"backoff\":{\"type\":\"mine\",\"delay\":100}}");
    ck_assert_int_eq(bullmq_backoff_ms(&opts, 1, 0), -1);
    ck_assert_str_eq(opts.backoff_type, "mine");
    bullmq_opts_done(&opts);
}

static void check_stack(const char *old, int64_t limit, const char *wanted)
{
    SCOPED_FREE char *text = bullmq_stack(old, "new", limit);
    ck_assert_str_eq(text, wanted);
}

TEST(stack_traces_keep_the_last)
{
    check_stack("", -1, "[\"new\"]");
    check_stack("[\"a\",\"b\"]", -1, "[\"a\",\"b\",\"new\"]");
    check_stack("[\"a\",\"b\"]", 2, "[\"b\",\"new\"]");
    check_stack("[\"a\"]", 0, "[]");
    check_stack("{}", -1, "[\"new\"]");
    check_stack("nonsense", -1, "[\"new\"]");
}

TEST(a_trace_is_the_end_of_stderr)
{
    SCOPED_FREE char *plain = bullmq_trace("why", NULL);
    SCOPED_FREE char *tail =
        bullmq_trace("why", "{\"streams\":{\"stderr\":{\"tail\":\"line\\n\"}}}");
    ck_assert_str_eq(plain, "why");
    ck_assert_str_eq(tail, "why\nline\n");
}

TEST(records_carry_what_came_before)
{
    struct bullmq_record record = { .worker = "w\"1",
                                    .attempt = 1,
                                    .state = JOB_DELAYED,
                                    .last = "{\"cause\":\"exit\",\"exit_code\":3}",
                                    .before = "",
                                    .out = "o\xff",
                                    .out_len = 2 };
    SCOPED_FREE char *first = bullmq_record_text(&record);
    record.attempt = 2;
    record.state = JOB_COMPLETED;
    record.before = first;
    record.last = "{\"cause\":\"exit\",\"exit_code\":0}";
    SCOPED_FREE char *second = bullmq_record_text(&record);
    SCOPED_JSON *json = bullmq_record_parse(second, strlen(second));
    const json_t *history = json_object_get(json, "history");

    ck_assert_uint_eq(json_array_size(history), 1);
    ck_assert_int_eq(bullmq_number(json_array_get(history, 0), "exit_code", -1), 3);
    ck_assert_int_eq(bullmq_number(json_array_get(history, 0), "attempt", -1), 1);
    ck_assert_str_eq(json_string_value(json_object_get(json_object_get(json, "out"), "b64")),
                     "b/8=");
    ck_assert_ptr_null(bullmq_record_parse("[]", 2));
    ck_assert_ptr_null(bullmq_record_parse("", 0));
}

TEST(ids_name_queue_and_job)
{
    SCOPED_FREE char *queue = NULL;
    char *none = NULL;
    const char *id;

    ck_assert_int_eq(bullmq_split_id("q:repeat:s:1", &queue, &id), 0);
    ck_assert_str_eq(queue, "q");
    ck_assert_str_eq(id, "repeat:s:1");
    ck_assert_int_eq(bullmq_split_id("17", &none, &id), -EINVAL);
    ck_assert_int_eq(bullmq_split_id(":17", &none, &id), -EINVAL);
    ck_assert_int_eq(bullmq_split_id("q:", &none, &id), -EINVAL);
}

TEST(workers_are_named_as_stock_ones_are)
{
    SCOPED_FREE char *named = bullmq_client_name("bull", "q1", "wk1");
    SCOPED_FREE char *plain = bullmq_client_name("bull", "q1", NULL);
    ck_assert_str_eq(named, "bull:cTE=:w:wk1");
    ck_assert_str_eq(plain, "bull:cTE=");
}

TEST(the_next_jobs_options_are_this_ones)
{
    struct bullmq_opts opts = parse("{\"attempts\":2,\"jobId\":\"x\",\"delay\":5,\"prevMillis\":9,"
                                    "\"repeat\":{\"every\":100,\"count\":1}}");
    SCOPED_FREE char *text = bullmq_repeat_opts(&opts, 2);
    ck_assert_str_eq(text, "{\"attempts\":2,\"repeat\":{\"every\":100,\"count\":2}");
    bullmq_opts_done(&opts);
}

UNIT_MAIN("bullmq")
