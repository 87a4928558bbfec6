/* test_spec.c - jobs as JSON and as command line options: what is taken, what is refused, and in which words. */
#include "job/spec.h"

#include "base/json.h"
#include "lib/unit.h"

static struct mandor_err err;

static json_t *parse(const char *text)
{
    json_t *json = NULL;

    ck_assert_msg(json_parse(text, strlen(text), &json, &err) == 0, "%s: %s", text, err.msg);
    return json;
}

/* The spec of a job's text with a queue's options (or NULL). */
static struct spec *spec_of(const char *text, const char *queue)
{
    json_t *job = parse(text), *defaults = queue != NULL ? parse(queue) : NULL;
    struct spec *spec = NULL;

    ck_assert_msg(spec_from_json(job, defaults, &spec, &err) == 0, "%s: %s", text, err.msg);
    json_decref(job);
    json_decref(defaults);
    return spec;
}

static void refused(const char *text, const char *message)
{
    json_t *job = parse(text);
    struct spec *spec = NULL;

    err_clear(&err);
    ck_assert_msg(spec_from_json(job, NULL, &spec, &err) == -EINVAL, "taken: %s", text);
    ck_assert_ptr_null(spec);
    ck_assert_str_eq(err.msg, message);
    ck_assert_int_eq(err.fault, FAULT_CALLER);
    ck_assert_int_eq(spec_from_json(job, NULL, &spec, NULL), -EINVAL); /* err may be NULL */
    json_decref(job);
}

static void writes(const struct spec *spec, const char *want)
{
    char *text = spec_to_text(spec);

    ck_assert_str_eq(text, want);
    free(text);
}

TEST(several_sinks_are_a_list_and_come_back_as_one)
{
    struct spec *spec = NULL;
    struct mandor_err why = { 0 };
    SCOPED_JSON *job = json_pack("{s:[s], s:[s, s], s:s}", "exec", "x", "stdout", "file:/a",
                                 "drop=1M:null:", "stderr", "spill=64K:file:/b");

    ck_assert_msg(spec_from_json(job, NULL, &spec, &why) == 0, "%s", why.msg);
    ck_assert_str_eq(spec->stdout_sink.bytes, "fan:\nfile:/a\ndrop=1M:null:");
    ck_assert_str_eq(spec->stderr_sink.bytes, "fan:\nspill=64K:file:/b");
    SCOPED_FREE char *text = spec_to_text(spec);
    ck_assert_ptr_nonnull(strstr(text, "\"stdout\":[\"file:/a\",\"drop=1M:null:\"]"));
    ck_assert_ptr_nonnull(strstr(text, "\"stderr\":[\"spill=64K:file:/b\"]"));
    spec_free(spec);
}

TEST(two_streams_need_two_places)
{
    refused(
        "{\"exec\":[\"true\"],\"stdout\":\"file:/x\",\"stderr\":\"file:/x\"}",
        "stderr: 'file:/x' is where stdout goes too, expected two places, or {stream} in the name");
    refused("{\"exec\":[\"true\"],\"stdout\":\"file:/{id}{{stream}\",\"stderr\":\"file:/"
            "{id}{{stream}\"}",
            "stderr: 'file:/{id}{{stream}' is where stdout goes too, expected two places, or "
            "{stream} in the name");
    spec_free(spec_of("{\"exec\":[\"true\"],\"stdout\":\"file:/{id}.{stream}\",\"stderr\":\"file:/"
                      "{id}.{stream}\"}",
                      NULL));
    spec_free(spec_of("{\"exec\":[\"true\"],\"stdout\":\"null:\",\"stderr\":\"null:\"}", NULL));
}

TEST(the_defaults_are_those_of_the_contract)
{
    struct spec *spec = spec_of("{\"exec\":[\"true\"]}", NULL);

    ck_assert_int_eq(spec->kind, SPEC_EXEC);
    ck_assert_uint_eq(spec->argc, 1);
    ck_assert_str_eq(spec->argv[0].bytes, "true");
    ck_assert_str_eq(spec->queue, "default");
    ck_assert_int_eq(spec->attempts, 1);
    ck_assert_int_eq(spec->backoff, BACKOFF_EXPONENTIAL);
    ck_assert_int_eq(spec->backoff_delay_ms, 1000);
    ck_assert_int_eq(spec->backoff_max_ms, 300000);
    ck_assert_double_eq(spec->backoff_jitter, 0.2);
    ck_assert_int_eq(spec->delay_ms, 0);
    ck_assert_int_eq(spec->priority, 0);
    ck_assert_ptr_null(spec->unique);
    ck_assert_uint_eq(spec->no_retry_count, 1);
    ck_assert_int_eq(spec->no_retry_exit_codes[0], 100);
    ck_assert_uint_eq(spec->env_count, 0);
    ck_assert_ptr_null(spec->cwd.bytes);
    ck_assert_ptr_null(spec->user);
    ck_assert_ptr_null(spec->stdin_src.bytes);
    ck_assert_str_eq(spec->stdout_sink.bytes, "auto:");
    ck_assert_str_eq(spec->stderr_sink.bytes, "auto:");
    ck_assert_int_eq(spec->frame, FRAME_RAW);
    ck_assert_int_eq(spec->frame_max_bytes, 1 << 20);
    ck_assert_int_eq(spec->checksum, CHECKSUM_XXH3);
    ck_assert_int_eq(spec->capture, CAPTURE_STDERR);
    ck_assert_int_eq(spec->commit, COMMIT_DEFAULT);
    ck_assert_int_eq(spec->output_max_bytes, 0);
    ck_assert_int_eq(spec->output_policy, OUTPUT_KILL);
    ck_assert_int_eq(spec->timeout_ms, 0);
    ck_assert_int_eq(spec->idle_timeout_ms, 0);
    ck_assert_int_eq(spec->kill_after_ms, 5000);
    ck_assert_int_eq(spec->output_drain_ms, 10000);
    ck_assert_int_eq(spec->sink_timeout_ms, 60000);
    ck_assert_int_eq(spec->limits.memory_bytes, 0);
    ck_assert_int_eq(spec->limits_policy, LIMITS_STRICT);
    ck_assert_int_eq(spec->containment, CONTAIN_AUTO);
    ck_assert(spec->no_new_privs);
    writes(spec, "{\"exec\":[\"true\"]}");
    spec_free(spec);
    ck_assert_ptr_null(spec_free(NULL));
}

TEST(every_key_reaches_its_field)
{
    struct spec *spec =
        spec_of("{\"exec\":[\"a\",\"\",{\"b64\":\"/"
                "w==\"}],\"queue\":\"q\",\"priority\":7,\"delay\":\"2s\",\"unique\":\"u\","
                "\"attempts\":3,\"backoff\":{\"type\":\"fixed\",\"delay\":\"2s\",\"max\":\"4m\","
                "\"jitter\":0.5},"
                "\"no_retry_exit_codes\":[1,255],\"env\":{\"A\":\"1\",\"B\":{\"b64\":\"/"
                "w==\"}},\"cwd\":\"/srv\",\"user\":\"u\","
                "\"group\":\"g\",\"stdin\":\"file:/in\",\"stdout\":\"file:/out/"
                "{id}\",\"stderr\":\"null:\",\"frame\":\"netstring\","
                "\"frame_max\":\"64K\",\"checksum\":\"none\",\"capture\":\"both\",\"commit\":"
                "\"always\",\"output_max\":5,"
                "\"output_policy\":\"discard\",\"output_drain\":1,\"sink_timeout\":2,\"timeout\":3."
                "0,\"idle_timeout\":1e3,"
                "\"kill_after\":\"1m\",\"limits\":{\"memory\":\"1G\",\"pids\":64,\"cpu\":0.5,\"cpu_"
                "time\":\"1m\",\"open_files\":100,"
                "\"file_size\":\"1.5M\"},\"limits_policy\":\"best_effort\",\"containment\":"
                "\"strict\",\"no_new_privs\":false}",
                NULL);

    ck_assert_uint_eq(spec->argc, 3);
    ck_assert_uint_eq(spec->argv[1].len, 0);
    ck_assert_str_eq(spec->argv[2].bytes, "\xff");
    ck_assert_str_eq(spec->queue, "q");
    ck_assert_int_eq(spec->priority, 7);
    ck_assert_int_eq(spec->delay_ms, 2000);
    ck_assert_str_eq(spec->unique, "u");
    ck_assert_int_eq(spec->attempts, 3);
    ck_assert_int_eq(spec->backoff, BACKOFF_FIXED);
    ck_assert_int_eq(spec->backoff_delay_ms, 2000);
    ck_assert_int_eq(spec->backoff_max_ms, 240000);
    ck_assert_double_eq(spec->backoff_jitter, 0.5);
    ck_assert_uint_eq(spec->no_retry_count, 2);
    ck_assert_int_eq(spec->no_retry_exit_codes[1], 255);
    ck_assert_uint_eq(spec->env_count, 2);
    ck_assert_str_eq(spec->env[0].bytes, "A=1");
    ck_assert_str_eq(spec->env[1].bytes, "B=\xff");
    ck_assert_str_eq(spec->cwd.bytes, "/srv");
    ck_assert_str_eq(spec->user, "u");
    ck_assert_str_eq(spec->group, "g");
    ck_assert_str_eq(spec->stdin_src.bytes, "file:/in");
    ck_assert_str_eq(spec->stdout_sink.bytes, "file:/out/{id}");
    ck_assert_str_eq(spec->stderr_sink.bytes, "null:");
    ck_assert_int_eq(spec->frame, FRAME_NETSTRING);
    ck_assert_int_eq(spec->frame_max_bytes, 65536);
    ck_assert_int_eq(spec->checksum, CHECKSUM_NONE);
    ck_assert_int_eq(spec->capture, CAPTURE_BOTH);
    ck_assert_int_eq(spec->commit, COMMIT_ALWAYS);
    ck_assert_int_eq(spec->output_max_bytes, 5);
    ck_assert_int_eq(spec->output_policy, OUTPUT_DISCARD);
    ck_assert_int_eq(spec->output_drain_ms, 1);
    ck_assert_int_eq(spec->sink_timeout_ms, 2);
    ck_assert_int_eq(spec->timeout_ms, 3);
    ck_assert_int_eq(spec->idle_timeout_ms, 1000);
    ck_assert_int_eq(spec->kill_after_ms, 60000);
    ck_assert_int_eq(spec->limits.memory_bytes, 1 << 30);
    ck_assert_int_eq(spec->limits.pids, 64);
    ck_assert_double_eq(spec->limits.cpu, 0.5);
    ck_assert_int_eq(spec->limits.cpu_time_ms, 60000);
    ck_assert_int_eq(spec->limits.open_files, 100);
    ck_assert_int_eq(spec->limits.file_size_bytes, 1572864);
    ck_assert_int_eq(spec->limits_policy, LIMITS_BEST_EFFORT);
    ck_assert_int_eq(spec->containment, CONTAIN_STRICT);
    ck_assert(!spec->no_new_privs);

    char *first = spec_to_text(spec), *second;
    json_t *json = parse(first);
    struct spec *again;
    ck_assert_int_eq(spec_from_json(json, NULL, &again, &err), 0);
    second = spec_to_text(again);
    ck_assert_str_eq(first, second);
    free(first);
    free(second);
    json_decref(json);
    spec_free(again);
    spec_free(spec);
}

TEST(pool_and_python_are_the_other_kinds)
{
    struct spec *spec = spec_of("{\"pool\":\"thumbs\",\"data\":{\"x\":[1,null]}}", NULL);

    ck_assert_int_eq(spec->kind, SPEC_POOL);
    ck_assert_str_eq(spec->pool, "thumbs");
    writes(spec, "{\"pool\":\"thumbs\",\"data\":{\"x\":[1,null]}}");
    spec_free(spec);
    spec = spec_of("{\"python\":{\"code\":\"1\",\"params\":null,\"packages\":[\"numpy\"],"
                   "\"runtime\":\"data\"}}",
                   NULL);
    ck_assert_int_eq(spec->kind, SPEC_PYTHON);
    ck_assert_str_eq(json_string_value(json_object_get(spec->python, "code")), "1");
    spec_free(spec);
}

TEST(what_is_given_is_written_even_when_it_is_the_default)
{
    /* …or the queue's default would win over it in the worker */
    struct spec *spec =
        spec_of("{\"exec\":[\"a\"],\"timeout\":0,\"backoff\":{\"jitter\":0.2}}", NULL);

    writes(spec, "{\"exec\":[\"a\"],\"backoff\":{\"jitter\":0.2},\"timeout\":\"0\"}");
    spec_free(spec);
}

TEST(a_queues_options_fill_what_the_job_leaves_open)
{
    static const char queue[] =
        "{\"timeout\":\"10m\",\"attempts\":3,\"env\":{\"A\":\"queue\",\"B\":\"queue\"},"
        "\"limits\":{\"memory\":\"1G\",\"pids\":5}}";
    struct spec *spec = spec_of(
        "{\"exec\":[\"a\"],\"attempts\":1,\"env\":{\"B\":\"job\"},\"limits\":{\"pids\":9}}", queue);

    ck_assert_int_eq(spec->timeout_ms, 600000);
    ck_assert_int_eq(spec->attempts, 1);
    ck_assert_int_eq(spec->limits.memory_bytes, 1 << 30);
    ck_assert_int_eq(spec->limits.pids, 9);
    ck_assert_uint_eq(spec->env_count, 2);
    ck_assert_str_eq(spec->env[0].bytes, "A=queue");
    ck_assert_str_eq(spec->env[1].bytes, "B=job");
    spec_free(spec);
}

static const struct {
    const char *job, *message;
} refusals[] = {
    { "[1]", "a job must be a JSON object, got an array" },
    { "\"x\"", "a job must be a JSON object, got a string" },
    { "{}", "nothing to run, expected exactly one of 'exec', 'pool', 'python'" },
    { "{\"exec\":[\"a\"],\"pool\":\"p\"}",
      "more than one thing to run (exec, pool), expected exactly one of 'exec', 'pool', 'python'" },
    { "{\"pool\":\"p\",\"python\":{\"code\":\"\"}}",
      "more than one thing to run (pool, python), expected exactly one of 'exec', 'pool', "
      "'python'" },
    { "{\"exec\":[\"a\"],\"data\":1}", "data: belongs to 'pool', expected it only there" },
    { "{\"exec\":[\"a\"],\"timout\":1}", "unknown key 'timout' in job, did you mean 'timeout'?" },
    { "{\"exec\":[\"a\"],\"owner\":\"1\"}", "unknown key 'owner' in job" },
    { "{\"exec\":[\"a\"],\"id\":1}", "id: expected text, got 1" },
    { "{\"exec\":[\"a\"],\"id\":\"\"}", "id: empty, expected text" },
    { "{\"exec\":[\"a\"],\"limits.memory\":1}",
      "unknown key 'limits.memory' in job, expected 'memory' in 'limits'" },
    { "{\"exec\":[\"a\"],\"limits\":{\"memry\":1}}",
      "unknown key 'memry' in limits, did you mean 'memory'?" },
    { "{\"exec\":[\"a\"],\"limits\":5}", "limits: expected an object" },
    { "{\"exec\":[\"a\"],\"backoff\":\"2s\"}", "backoff: expected an object" },
    { "{\"exec\":\"ls -l\"}",
      "exec: expected an array of strings, the program first, got \"ls -l\"" },
    { "{\"exec\":[]}", "exec: empty, expected at least a program" },
    { "{\"exec\":[\"\"]}", "exec[0]: empty, expected a program" },
    { "{\"exec\":[\"a\",3]}", "exec[1]: expected a string or {\"b64\": \"...\"}" },
    { "{\"exec\":[\"a\",{\"b64\":\"YQBi\"}]}",
      "exec[1]: NUL at byte 2, expected bytes without NUL" },
    { "{\"exec\":[\"a\",{\"b64\":\"?\"}]}",
      "exec[1]: bad base64 at character 2, expected padded RFC 4648 base64" },
    { "{\"pool\":\"\"}", "pool: empty, expected text" },
    { "{\"python\":{\"cod\":1}}", "unknown key 'cod' in python, did you mean 'code'?" },
    { "{\"python\":{}}", "python.code: expected the program's text" },
    { "{\"python\":{\"code\":\"\",\"packages\":[1]}}", "python.packages[0]: expected a name" },
    { "{\"python\":3}", "python: expected an object {\"code\": \"...\"}" },
    { "{\"exec\":[\"a\"],\"timeout\":-1}",
      "timeout: expected a duration from 0 to 36500d, got -1" },
    { "{\"exec\":[\"a\"],\"timeout\":1.5}",
      "timeout: expected a duration such as \"30s\" or a whole number of milliseconds, got 1.5" },
    { "{\"exec\":[\"a\"],\"timeout\":true}",
      "timeout: expected a duration such as \"30s\" or a whole number of milliseconds, got true" },
    { "{\"exec\":[\"a\"],\"timeout\":null}",
      "timeout: expected a duration such as \"30s\" or a whole number of milliseconds, got null" },
    { "{\"exec\":[\"a\"],\"timeout\":9223372036854775807}",
      "timeout: expected a duration from 0 to 36500d, got 9223372036854775807" },
    { "{\"exec\":[\"a\"],\"timeout\":1e300}", "timeout: expected a duration such as \"30s\" or a "
                                              "whole number of milliseconds, got 1e300" },
    { "{\"exec\":[\"a\"],\"timeout\":\"5x\"}", "timeout: '5x' is wrong at character 2, expected a "
                                               "duration such as 500ms, 30s, 5m, 1h30m or 7d" },
    { "{\"exec\":[\"a\"],\"limits\":{\"memory\":\"-1\"}}",
      "limits.memory: '-1' is negative, expected a size such as 100, 64K, 512M, 8MiB or 1.5G" },
    { "{\"exec\":[\"a\"],\"frame_max\":0}", "frame_max: expected a size from 1 to 1G, got 0" },
    { "{\"exec\":[\"a\"],\"attempts\":0}",
      "attempts: expected a whole number from 1 to 1000000, got 0" },
    { "{\"exec\":[\"a\"],\"attempts\":\"3\"}",
      "attempts: expected a whole number from 1 to 1000000, got \"3\"" },
    { "{\"exec\":[\"a\"],\"backoff\":{\"jitter\":1.01}}",
      "backoff.jitter: expected a number from 0 to 1, got 1.01" },
    { "{\"exec\":[\"a\"],\"backoff\":{\"delay\":\"10m\",\"max\":\"5m\"}}",
      "backoff.max: 5m is shorter than backoff.delay 10m, expected at least that" },
    { "{\"exec\":[\"a\"],\"frame\":\"line\"}",
      "frame: expected one of raw|lines|u32be|u32le|varint|netstring, got \"line\", did you mean "
      "'lines'?" },
    { "{\"exec\":[\"a\"],\"frame\":3}",
      "frame: expected one of raw|lines|u32be|u32le|varint|netstring, got 3" },
    { "{\"exec\":[\"a\"],\"no_new_privs\":1}", "no_new_privs: expected true or false, got 1" },
    { "{\"exec\":[\"a\"],\"no_retry_exit_codes\":[1,256]}",
      "no_retry_exit_codes: expected item 1 to be a whole number from 1 to 255, got 256" },
    { "{\"exec\":[\"a\"],\"queue\":\"\"}",
      "queue: 0 bytes long, expected a name of 1 to 100 bytes" },
    { "{\"exec\":[\"a\"],\"queue\":\"a\\nb\"}",
      "queue: control character at byte 2, expected a printable name" },
    { "{\"exec\":[\"a\"],\"queue\":{\"b64\":\"YQ==\"}}", "queue: expected text, got an object" },
    { "{\"exec\":[\"a\"],\"cwd\":\"srv\"}", "cwd: 'srv' is relative, expected an absolute path" },
    { "{\"exec\":[\"a\"],\"cwd\":\"\"}", "cwd: '' is relative, expected an absolute path" },
    { "{\"exec\":[\"a\"],\"stdin\":\"file:in\"}",
      "stdin: 'file:in' is relative, expected an absolute path such as file:/srv/out" },
    { "{\"exec\":[\"a\"],\"stdout\":\"file:{id}\"}",
      "stdout: 'file:{id}' is relative, expected an absolute path such as file:/srv/out" },
    { "{\"exec\":[\"a\"],\"stdout\":\"\"}", "stdout: empty, expected a URL such as file:/srv/out" },
    { "{\"exec\":[\"a\"],\"stderr\":\"file:/{job}\"}",
      "stderr: unknown placeholder '{job}', expected {id}, {queue}, {attempt} or {stream}, or {{ "
      "for a brace" },
    { "{\"exec\":[\"a\"],\"env\":[\"A=1\"]}",
      "env: expected an object of names and values, got an array" },
    { "{\"exec\":[\"a\"],\"env\":{\"\":\"x\"}}", "env: empty name, expected NAME and value" },
    { "{\"exec\":[\"a\"],\"env\":{\"A=B\":\"x\"}}",
      "env.A=B: '=' in the name, expected a name without" },
    { "{\"exec\":[\"a\"],\"env\":{\"N\":1}}", "env.N: expected a string or {\"b64\": \"...\"}" },
    { "{\"exec\":[\"a\"],\"env\":{\"MANDOR_FD\":\"9\"}}",
      "env.MANDOR_FD: names that start with MANDOR_ are mandor's own, expected another name" },
};

TEST(a_refusal_names_the_key_and_what_was_expected)
{
    for (size_t i = 0; i < ARRAY_LEN(refusals); i++)
        refused(refusals[i].job, refusals[i].message);
}

/* A job whose exec[3] (name NULL) or env member is len bytes long. */
static json_t *job_with(const char *name, size_t len)
{
    char *text = malloc(len + 1);
    memset(text, 'x', len);
    text[len] = '\0';
    json_t *job = name == NULL ? json_pack("{s:[s,s,s,s]}", "exec", "a", "b", "c", text)
                               : json_pack("{s:[s],s:{s:s}}", "exec", "a", "env", name, text);
    free(text);
    return job;
}

TEST(r08_a_string_longer_than_the_kernel_takes_is_refused_by_name)
{
    static const struct {
        const char *name;
        size_t fits;
        const char *message;
    } rows[] = {
        { NULL, 131071,
          "exec[3]: 131072 bytes long, Linux takes at most 131071 in one string; pass it by stdin "
          "or a file" },
        { "BIG", 131067,
          "env.BIG: 131072 bytes long, Linux takes at most 131071 in one string; pass it by stdin "
          "or a file" },
    };

    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct spec *spec = NULL;
        json_t *job = job_with(rows[i].name, rows[i].fits);
        ck_assert_int_eq(spec_from_json(job, NULL, &spec, &err), 0);
        spec_free(spec);
        json_decref(job);
        job = job_with(rows[i].name, rows[i].fits + 1);
        ck_assert_int_eq(spec_from_json(job, NULL, &spec, &err), -EINVAL);
        ck_assert_str_eq(err.msg, rows[i].message);
        json_decref(job);
    }
}

TEST(a_delay_above_the_default_maximum_raises_it)
{
    struct spec *spec = spec_of("{\"exec\":[\"a\"],\"backoff\":{\"delay\":\"10m\"}}", NULL);

    ck_assert_int_eq(spec->backoff_max_ms, 600000);
    spec_free(spec);
}

static void defaults_refused(const char *text, const char *message)
{
    json_t *json = parse(text);

    ck_assert_int_eq(spec_check_defaults(json, &err), -EINVAL);
    ck_assert_str_eq(err.msg, message);
    json_decref(json);
}

TEST(queue_options_are_checked_alone)
{
    json_t *good = parse("{\"timeout\":\"1m\",\"limits\":{\"pids\":3},\"env\":{\"A\":\"1\"}}");

    ck_assert_int_eq(spec_check_defaults(good, &err), 0);
    json_decref(good);
    defaults_refused("{\"timout\":1}", "unknown key 'timout' in queue, did you mean 'timeout'?");
    defaults_refused("{\"exec\":[\"a\"]}", "key 'exec' belongs to a job, not to queue");
    defaults_refused("{\"unique\":\"a\"}", "key 'unique' belongs to a job, not to queue");
    defaults_refused("{\"limits\":{\"pids\":-1}}",
                     "limits.pids: expected a whole number from 0 to 4194304, got -1");
    defaults_refused("[]", "queue options must be an object");
}

/* ---- flags ---- */

TEST(flags_build_the_same_job_as_json)
{
    static const char *const flags[][2] = {
        { "timeout", "5m" },    { "env", "A=1=2" },        { "env", "B=\xff" },
        { "env", "A=3" },       { "memory", "1G" },        { "no-new-privs", NULL },
        { "backoff", "fixed" }, { "backoff-delay", "1s" }, { "no-retry-exit-codes", "1,2" },
        { "cpu", "0.5" },       { "attempts", "3" },       { "data", "{\"x\": 1}" },
        { "pool", "p" },        { "cwd", "/\xff" },
    };
    json_t *job = json_object();

    for (size_t i = 0; i < ARRAY_LEN(flags); i++)
        ck_assert_msg(spec_set_flag(job, flags[i][0], flags[i][1], &err) == 0, "%s", err.msg);
    json_t *want = parse(
        "{\"timeout\":\"5m\",\"env\":{\"A\":\"3\",\"B\":{\"b64\":\"/"
        "w==\"}},\"limits\":{\"memory\":\"1G\","
        "\"cpu\":0.5},\"no_new_privs\":true,\"backoff\":{\"type\":\"fixed\",\"delay\":\"1s\"},"
        "\"no_retry_exit_codes\":[1,2],\"attempts\":3,\"data\":{\"x\":1},\"pool\":\"p\",\"cwd\":{"
        "\"b64\":\"L/8=\"}}");
    ck_assert(json_equal(job, want));
    json_decref(want);
    json_decref(job);
}

static const struct {
    const char *flag, *text, *message;
    int code;
} bad_flags[] = {
    { "foo", "1", "unknown option '--foo'", -ENOENT },
    { "timeout", NULL, "--timeout: expected an argument D", -EINVAL },
    { "timeout", "5x",
      "--timeout: '5x' is wrong at character 2, expected a duration such as 500ms, 30s, 5m, 1h30m "
      "or 7d",
      -EINVAL },
    { "attempts", "0", "--attempts: '0' is out of range, expected a whole number from 1 to 1000000",
      -EINVAL },
    { "attempts", "x", "--attempts: 'x' is no number, expected a whole number", -EINVAL },
    { "cpu", "nan", "--cpu: 'nan' is no number, expected one such as 0.5", -EINVAL },
    { "cpu", "0x1", "--cpu: '0x1' is no number, expected one such as 0.5", -EINVAL },
    { "cpu", "1e999", "--cpu: '1e999' is too large", -EINVAL },
    { "cpu", "-1", "--cpu: expected a number from 0 to 65536, got -1.0", -EINVAL },
    { "env", "A", "--env: 'A' has no name and '=', expected NAME=VALUE", -EINVAL },
    { "env", "=A", "--env: '=A' has no name and '=', expected NAME=VALUE", -EINVAL },
    { "env", "MANDOR_FD=1",
      "--env.MANDOR_FD: names that start with MANDOR_ are mandor's own, expected another name",
      -EINVAL },
    { "no-retry-exit-codes", "1,300",
      "--no-retry-exit-codes: '300' is out of range, expected a whole number from 1 to 255",
      -EINVAL },
    { "no-retry-exit-codes", "1,",
      "--no-retry-exit-codes: '1,' ends in a comma, expected a number behind it", -EINVAL },
    { "no-new-privs", "yes", "--no-new-privs: expected true or false, got 'yes'", -EINVAL },
    { "queue", "\xff", "--queue: not valid UTF-8, expected text", -EINVAL },
    { "data", "{", NULL, -EINVAL },
    { "capture", "stduot",
      "--capture: expected one of none|stdout|stderr|both, got \"stduot\", did you mean 'stdout'?",
      -EINVAL },
};

TEST(a_bad_flag_is_refused_by_its_name)
{
    for (size_t i = 0; i < ARRAY_LEN(bad_flags); i++) {
        json_t *job = json_object();
        ck_assert_int_eq(spec_set_flag(job, bad_flags[i].flag, bad_flags[i].text, &err),
                         bad_flags[i].code);
        if (bad_flags[i].message != NULL)
            ck_assert_str_eq(err.msg, bad_flags[i].message);
        ck_assert_uint_eq(json_object_size(job), 0);
        json_decref(job);
    }
}

TEST(the_table_of_options_is_sound)
{
    size_t count;
    const struct spec_option *options = spec_options(&count);

    for (size_t i = 0; i < count; i++) {
        ck_assert(strlen(options[i].help) > 10 &&
                  options[i].help[strlen(options[i].help) - 1] != '.');
        ck_assert_int_eq(options[i].type == OPT_ENUM, options[i].choices != NULL);
        ck_assert(options[i].flag == NULL || options[i].arg != NULL || options[i].type == OPT_BOOL);
        for (size_t k = 0; k < i; k++) {
            ck_assert_str_ne(options[i].key, options[k].key);
            if (options[i].flag != NULL && options[k].flag != NULL)
                ck_assert_str_ne(options[i].flag, options[k].flag);
        }
        if (options[i].fallback[0] != '\0') { /* every default passes its own check */
            json_t *json;
            ck_assert_int_eq(spec_value_from_text(options[i].key, options[i].fallback, &json, &err),
                             0);
            json_decref(json);
        }
    }
}

TEST(names_of_enums_are_those_of_the_table)
{
    for (int i = 0; i <= CONTAIN_STRICT; i++) {
        json_t *json;
        ck_assert_int_eq(spec_value_from_text("containment",
                                              spec_containment_name((enum spec_containment)i),
                                              &json, &err),
                         0);
        json_decref(json);
    }
}

/* ---- expand ---- */

static const struct {
    const char *template_text, *id, *queue, *want; /* want NULL: refused */
} expansions[] = {
    { "file:/a/{queue}/{id}.{attempt}.{stream}", "17", "q", "file:/a/q/17.3.stderr" },
    { "file:/{queue}", "1", "../../etc", "file:/%2E.%2F..%2Fetc" },
    { "file:/{queue}", "1", ".", "file:/%2E" },
    { "file:/{queue}", "1", "a%2Fb", "file:/a%252Fb" },
    { "redis://h/?stream={queue}", "1", "q&maxlen=1#x?", "redis://h/?stream=q%26maxlen=1%23x%3F" },
    { "file:/{queue}", "1", "\xc3\xa9 x", "file:/\xc3\xa9 x" },
    { "file:/{{id}", "1", "q", "file:/{id}" },
    { "file:/{{{id}}", "1", "q", "file:/{1}" },
    { "file:/}}", "1", "q", "file:/}}" },
    { "inline:{\"id\":{}}", "1", "q", "inline:{\"id\":{}}" },
    { "", "1", "q", "" },
    { "file:/{", "1", "q", NULL },
    { "file:/{id", "1", "q", NULL },
    { "file:/{}", "1", "q", NULL },
    { "file:/{ID}", "1", "q", NULL },
    { "file:/{id{queue}}", "1", "q", NULL },
};

TEST(a_value_never_changes_what_the_url_means)
{
    for (size_t i = 0; i < ARRAY_LEN(expansions); i++) {
        err_clear(&err);
        char *text = spec_expand(expansions[i].template_text, expansions[i].id, expansions[i].queue,
                                 3, "stderr", &err);
        if (expansions[i].want != NULL)
            ck_assert_str_eq(text, expansions[i].want);
        else
            ck_assert(text == NULL && err.code == -EINVAL && err.msg[0] != '\0');
        free(text);
    }
    ck_assert_ptr_null(spec_expand("{x}", "1", "q", 1, "stdout", NULL));
}

UNIT_MAIN("spec")
