/* test_oom.c - running out of memory is an error like any other: every allocation of the parsers is made to fail once.
 *
 * The linker sends malloc() and its like through here (--wrap), jansson's go the same way by json_set_alloc_funcs().
 */
#include <stdio.h>

#include "base/buf.h"
#include "base/hash.h"
#include "base/json.h"
#include "config/config.h"
#include "job/record.h"
#include "job/spec.h"
#include "lib/unit.h"

static long countdown = -1; /* allocations until the one that fails; < 0 = none does */

static bool fails(void)
{
    return countdown >= 0 && countdown-- == 0;
}

void *__real_malloc(size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_malloc(size_t size)
{
    return fails() ? NULL : __real_malloc(size);
}

void *__real_calloc(size_t count, size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_calloc(size_t count, size_t size)
{
    return fails() ? NULL : __real_calloc(count, size);
}

void *__real_realloc(void *p, size_t size);
void *__wrap_realloc(void *p, size_t size);
void *__wrap_realloc(void *p, size_t size)
{
    return fails() ? NULL : __real_realloc(p, size);
}

char *__real_strdup(const char *text);
char *__wrap_strdup(const char *text);
char *__wrap_strdup(const char *text)
{
    return fails() ? NULL : __real_strdup(text);
}

/* Run step with its 1st, 2nd, 3rd… allocation failing until none does any more: each time it must say so (-ENOMEM),
 * and the sanitizers see to it that nothing leaks or is freed twice. */
static void fail_each(int (*step)(void))
{
    json_set_alloc_funcs(__wrap_malloc, free);
    for (long n = 0;; n++) {
        ck_assert_int_lt(n, 10000);
        countdown = n;
        int r = step();
        bool none_failed = countdown >= 0;
        countdown = -1;
        if (none_failed) {
            ck_assert_int_eq(r, 0);
            ck_assert_int_gt(n, 0);
            return;
        }
        ck_assert_msg(r == -ENOMEM, "allocation %ld failed, result %d", n, r);
    }
}

static const char job_text[] =
    "{\"exec\":[\"a\",{\"b64\":\"/w==\"}],\"env\":{\"A\":\"1\"},\"cwd\":\"/x\",\"stdout\":\"file:/"
    "{id}\",\"timeout\":\"1m\","
    "\"limits\":{\"memory\":\"1G\",\"pids\":5},\"no_retry_exit_codes\":[1]}";
static const char queue_text[] = "{\"env\":{\"B\":\"2\"},\"attempts\":3}";

/* Memory is not short in here: jansson's lexer calls it an invalid token, which is not ours to mend. */
static json_t *parse(const char *text)
{
    long saved = countdown;
    json_t *json = NULL;

    countdown = -1;
    ck_assert_int_eq(json_parse(text, strlen(text), &json, NULL), 0);
    countdown = saved;
    return json;
}

static int parse_and_print_job(void)
{
    SCOPED_JSON *job = parse(job_text), *queue = parse(queue_text);
    SCOPED(spec_free) struct spec *spec = NULL;
    struct mandor_err err;

    int r = spec_from_json(job, queue, &spec, &err);
    if (r < 0)
        return r == err.code ? r : -EPROTO;
    SCOPED_FREE char *text = spec_to_text(spec);
    return text != NULL ? 0 : -ENOMEM;
}

TEST(a_job_is_parsed_and_printed_or_memory_is_short)
{
    fail_each(parse_and_print_job);
}

static int set_flags(void)
{
    static const char *const flags[][2] = { { "timeout", "5m" }, { "env", "A=1" },
                                            { "env", "B=\xff" }, { "memory", "1G" },
                                            { "pids", "5" },     { "no-retry-exit-codes", "1,2" },
                                            { "cwd", "/x" },     { "cpu", "0.5" } };
    SCOPED_JSON *job = json_object();
    if (job == NULL)
        return -ENOMEM;

    for (size_t i = 0; i < ARRAY_LEN(flags); i++) {
        int r = spec_set_flag(job, flags[i][0], flags[i][1], NULL);
        if (r < 0)
            return r;
    }
    return 0;
}

TEST(flags_are_set_or_memory_is_short)
{
    fail_each(set_flags);
}

static const char yaml[] =
    "broker: a${HOME}\nenv_pass: [A, B]\nqueues:\n  t:\n    timeout: 1m\n    env: {A: 1}\n"
    "    limits: {memory: 1G}\n    no_retry_exit_codes: [1, 2]\n    keep_failed: {age: 1d}\n";

static int parse_config(void)
{
    SCOPED(config_free) struct config *config = NULL;
    struct mandor_err err;

    int r = config_parse("dir/mandor.yaml", yaml, strlen(yaml), &config, &err);
    return r < 0 && r != err.code ? -EPROTO : r;
}

TEST(a_configuration_is_parsed_or_memory_is_short)
{
    ck_assert_int_eq(setenv("HOME", "/h", 1), 0);
    fail_each(parse_config);
}

static int write_attempt(void)
{
    static const struct verdict verdict = { .cause = CAUSE_EXIT,
                                            .exit_code = 1,
                                            .error = "exit code 1" };
    static const struct record_stream out = {
        .sink = "auto", .path = "ring", .target = "/\xff", .tail = "\xff", .tail_len = 1
    };
    SCOPED_BUF text = { 0 };

    return record_attempt_text(&(struct record_attempt){ .verdict = &verdict, .out = &out }, &text);
}

static json_t *ended; /* what the attempt left */

static int print_record(void)
{
    SCOPED_JSON *json = record_json(
        &(struct record){ .id = "1", .queue = "q", .created_ms = 1, .attempt_json = ended });
    return json != NULL ? 0 : -ENOMEM;
}

TEST(a_record_is_whole_or_not_at_all)
{
    static const char text[] = "{\"cause\":\"exit\",\"exit_code\":1,\"streams\":{\"stdout\":{"
                               "\"sink\":\"auto\",\"tail\":\"x\",\"tail_b64\":\"/w==\"}}}";

    fail_each(write_attempt);
    ck_assert_int_eq(json_parse(text, strlen(text), &ended, NULL), 0);
    fail_each(print_record);
    json_decref(ended);
}

static int fill_hash(void)
{
    static int value;
    SCOPED(hash_free) struct hash *hash = NULL;
    char key[16];

    int r = hash_new(&hash);
    for (int i = 0; i < 40 && r == 0; i++) {
        (void)snprintf(key, sizeof key, "%d", i);
        r = hash_puts(hash, key, &value);
        if (r == 0 && hash_gets(hash, key) != &value)
            return -EPROTO;
    }
    return r;
}

TEST(a_hash_takes_a_key_or_memory_is_short)
{
    fail_each(fill_hash);
}

UNIT_MAIN("oom")
