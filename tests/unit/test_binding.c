/* test_binding.c - what jobs of a bound queue run, and what they may not. */
#include <check.h>
#include <stdio.h>

#include "base/json.h"
#include "job/binding.h"
#include "job/spec.h"

#define TEST(name) START_TEST(name)

static const struct binding_place place = { .id = "7", .queue = "q", .name = "resize" };

static json_t *parse(const char *text)
{
    json_t *json = json_loads(text, JSON_DECODE_ANY, NULL);
    ck_assert_msg(json != NULL, "%s", text);
    return json;
}

static const char *const *words(const char *a, const char *b, const char *c)
{
    static const char *list[4];
    list[0] = a;
    list[1] = b;
    list[2] = c;
    list[3] = NULL;
    return list;
}

static char *text_of(const json_t *json)
{
    static char text[512];
    SCOPED_FREE char *dumped = json_text(json);
    (void)snprintf(text, sizeof text, "%s", dumped);
    return text;
}

TEST(placeholders_fill_a_place_in_one_argument)
{
    static const struct {
        const char *word, *data, *result;
    } rows[] = {
        { "{data.url}", "{\"url\": \"a b; rm -rf $HOME '\\\"\"}", "a b; rm -rf $HOME '\"" },
        { "--in={data.url}", "{\"url\": \"-x\"}", "--in=-x" },
        { "{data.a.b}", "{\"a\": {\"b\": 5}}", "5" },
        { "{data.a.1}", "{\"a\": [1, \"two\"]}", "two" },
        { "{data}", "[1,{\"x\":true}]", "[1,{\"x\":true}]" },
        { "{data.n}", "{\"n\": -5}", "-5" },
        { "{data.f}x{data.f}", "{\"f\": 1.5}", "1.5x1.5" },
        { "{data.t}", "{\"t\": false}", "false" },
        { "{{data.x}", "{}", "{data.x}" },
        { "{id}/{queue}/{name}", "null", "7/q/resize" },
        { "plain", "{}", "plain" },
        { "", "{}", "" },
        { "{data.x}", "{\"x\": \"\"}", "" },
        { "{data.x}", "{\"x\": \"-\"}", "-" },
        { "{data.x}", "{\"x\": \"{id}\"}", "{id}" }, /* what was filled in is not looked at again */
        { "{data.o}", "{\"o\": {\"k\": 1}}", "{\"k\":1}" },
        { "{data.b}", "{\"b\": {\"b64\": \"YWI=\"}}", "ab" },
        { "{data.a b}", "{\"a b\": \"v\"}", "v" },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        SCOPED_JSON *data = parse(rows[i].data), *argv = NULL;
        struct mandor_err err = { 0 };
        int r = binding_fill(words("p", rows[i].word, NULL), data, &place, &argv, &err);
        ck_assert_msg(r == 0, "%s: %s", rows[i].word, err.msg);
        ck_assert_uint_eq(json_array_size(argv), 2);
        ck_assert_str_eq(json_string_value(json_array_get(argv, 1)), rows[i].result);
    }
}
END_TEST

TEST(all_of_the_data_come_as_they_were_written)
{
    static const char text[] = "{\"n\": [1E3, 100000000000000000000],  \"u\": \"\\u00fc\\/\"}";
    const struct binding_place written = { .id = "7", .queue = "q", .data_text = text };
    json_error_t why;
    SCOPED_JSON *data = json_load_foreign(text, strlen(text), &why), *argv = NULL;
    ck_assert_msg(data != NULL, "%s", why.text);
    ck_assert_int_eq(binding_fill(words("p", "{data}", "{data.u}"), data, &written, &argv, NULL),
                     0);
    ck_assert_str_eq(json_string_value(json_array_get(argv, 1)), text);
    ck_assert_str_eq(json_string_value(json_array_get(argv, 2)), "\u00fc/");
}
END_TEST

TEST(bytes_that_are_no_text_come_through)
{
    SCOPED_JSON *data = parse("{\"b\": {\"b64\": \"/w==\"}}"), *argv = NULL;
    ck_assert_int_eq(binding_fill(words("p", "{data.b}", NULL), data, &place, &argv, NULL), 0);
    ck_assert_str_eq(text_of(argv), "[\"p\",{\"b64\":\"/w==\"}]");
}
END_TEST

TEST(a_value_that_is_missing_or_would_be_an_option_is_refused)
{
    static const struct {
        const char *word, *data, *why;
    } rows[] = {
        { "{data.url}", "{}", "no 'url'" },
        { "{data.url}", "{\"url\": null}", "no 'url'" },
        { "{data.a.b}", "{\"a\": \"text\"}", "no 'a.b'" },
        { "{data.l.9}", "{\"l\": [1]}", "no 'l.9'" },
        { "{data}", "null", "no 'value'" },
        { "{data.x}", "{\"x\": \"-rf\"}", "option" },
        { "{data.e}{data.x}", "{\"e\": \"\", \"x\": \"--y\"}", "option" },
        { "{data.b}", "{\"b\": {\"b64\": \"LXg=\"}}", "option" },
        { "{data.b}", "{\"b\": {\"b64\": \"AA==\"}}", "NUL" },
        { "{data.b}", "{\"b\": {\"b64\": \"!\"}}", "data.b" },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        SCOPED_JSON *data = parse(rows[i].data), *argv = NULL;
        struct mandor_err err = { 0 };
        ck_assert_int_eq(binding_fill(words("p", rows[i].word, NULL), data, &place, &argv, &err),
                         -EINVAL);
        ck_assert_msg(strstr(err.msg, rows[i].why) != NULL, "%s: %s", rows[i].word, err.msg);
    }
    SCOPED_JSON *data = parse("{\"x\": \"-rf\"}"), *argv = NULL;
    ck_assert_int_eq(binding_fill(words("p", "--", "{data.x}"), data, &place, &argv, NULL), 0);
}
END_TEST

TEST(templates_and_keys_that_contradict_each_other_are_refused)
{
    const char *const good[] = { "p", "{data.x}", NULL }, *const open[] = { "p", "{data.x", NULL },
                      *const unknown[] = { "p", "{date}", NULL },
                      *const program[] = { "{data.p}", NULL },
                      *const dots[] = { "p", "{data..x}", NULL },
                      *const last[] = { "p", "{data.}", NULL };
    const struct {
        struct binding binding;
        const char *why; /* NULL = sound */
    } rows[] = {
        { { .command = good }, NULL },
        { { .command = good, .executor = "exec" }, NULL },
        { { .pool = "p", .executor = "pool" }, NULL },
        { { .executor = "python" }, NULL },
        { { .executor = "python", .python_open = true, .code = "1" }, NULL },
        { { .executor = "exec", .allow_exec = true }, NULL },
        { { 0 }, NULL },
        { { .command = open }, "no end" },
        { { .command = unknown }, "{date}" },
        { { .command = dots }, "unknown placeholder" },
        { { .command = last }, "unknown placeholder" },
        { { .command = program }, "program itself" },
        { { .command = good, .pool = "p" }, "more than one" },
        { { .command = good, .code = "1" }, "more than one" },
        { { .executor = "exec" }, "command" },
        { { .executor = "pool" }, "pool" },
        { { .executor = "python", .command = good }, "python" },
        { { .executor = "python", .python_open = true }, "sandbox" },
        { { .runtime = "r", .python_open = true }, "sandbox" },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct mandor_err err = { 0 };
        int r = binding_check(&rows[i].binding, &err);
        ck_assert_msg(r == (rows[i].why == NULL ? 0 : -EINVAL), "row %zu: %d %s", i, r, err.msg);
        ck_assert_msg(rows[i].why == NULL || strstr(err.msg, rows[i].why) != NULL, "row %zu: %s", i,
                      err.msg);
    }
}
END_TEST

TEST(a_shared_message_runs_only_what_its_queue_allows)
{
    const char *const command[] = { "convert", "{data.f}", NULL };
    const struct binding none = { 0 }, bound = { .command = command },
                         open = { .allow_exec = true }, pool = { .pool = "thumbs" },
                         python = { .executor = "python", .runtime = "data" },
                         fixed = { .executor = "python", .code = "print(1)" };
    const struct {
        const struct binding *binding;
        const char *job, *result, *why;
    } rows[] = {
        { &none, "{\"exec\": [\"sh\"]}", NULL, "allow_exec" },
        { &bound, "{\"exec\": [\"sh\"]}", NULL, "allow_exec" },
        { &none, "{\"data\": 1}", NULL, "not bound" },
        { &none, "{}", NULL, "not bound" },
        { &none, "{\"pool\": \"thumbs\"}", NULL, "pool: thumbs" },
        { &none, "{\"python\": {\"code\": \"1\"}}", NULL, "executor: python" },
        { &open, "{\"exec\": [\"sh\"], \"cwd\": \"/\"}", "{\"exec\":[\"sh\"],\"cwd\":\"/\"}",
          NULL },
        { &bound, "{\"data\": {\"f\": \"a\"}, \"timeout\": \"5s\", \"attempts\": 3}",
          "{\"timeout\":\"5s\",\"attempts\":3,\"exec\":[\"convert\",\"a\"]}", NULL },
        { &bound, "{\"data\": {\"f\": \"a\"}, \"stdout\": \"file:/etc/passwd\"}", NULL,
          "'stdout'" },
        { &bound, "{\"data\": {\"f\": \"a\"}, \"env\": {\"LD_PRELOAD\": \"/x\"}}", NULL, "'env'" },
        { &bound, "{\"data\": {\"f\": \"a\"}, \"user\": \"root\"}", NULL, "'user'" },
        { &bound, "{\"data\": {\"f\": \"a\"}, \"containment\": \"group\"}", NULL, "'containment'" },
        { &pool, "{\"data\": [1]}", "{\"pool\":\"thumbs\",\"data\":[1]}", NULL },
        { &pool, "{\"pool\": \"thumbs\", \"data\": [1]}", "{\"pool\":\"thumbs\",\"data\":[1]}",
          NULL },
        { &pool, "{\"pool\": \"other\"}", NULL, "'other'" },
        { &python, "{\"data\": {\"code\": \"1\", \"params\": 2, \"extra\": 3}}",
          "{\"python\":{\"code\":\"1\",\"params\":2,\"runtime\":\"data\"}}", NULL },
        { &python, "{\"python\": {\"code\": \"1\", \"runtime\": \"open\"}}", NULL, "'open'" },
        { &python, "{\"data\": {}}", NULL, "'code'" },
        { &fixed, "{\"data\": {\"code\": \"evil\"}}",
          "{\"python\":{\"code\":\"print(1)\",\"params\":{\"code\":\"evil\"}}}", NULL },
        { &fixed, "{\"python\": {\"code\": \"evil\"}}", NULL, "program of its own" },
        { &bound, "[]", NULL, "object" },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        SCOPED_JSON *job = parse(rows[i].job), *made = NULL;
        struct mandor_err err = { 0 };
        int r = binding_job(rows[i].binding, job, true, &place, &made, &err);
        ck_assert_msg((r == 0) == (rows[i].why == NULL), "row %zu: %d %s", i, r, err.msg);
        if (r == 0)
            ck_assert_str_eq(text_of(made), rows[i].result);
        else
            ck_assert_msg(strstr(err.msg, rows[i].why) != NULL, "row %zu: %s", i, err.msg);
    }
}
END_TEST

TEST(a_local_job_is_taken_as_it_is_and_bare_data_by_the_binding)
{
    const char *const command[] = { "convert", "{data.f}", NULL };
    const struct binding none = { 0 }, bound = { .command = command };
    SCOPED_JSON *exec = parse("{\"exec\": [\"sh\"], \"user\": \"u\"}"),
                *data = parse("{\"data\": {\"f\": 1}, \"stdin\": \"file:/x\"}");
    json_t *made[4] = { 0 };
    ck_assert_int_eq(binding_job(&none, exec, false, &place, &made[0], NULL), 0);
    ck_assert_ptr_eq(made[0], exec);
    ck_assert_int_eq(binding_job(&bound, exec, false, &place, &made[1], NULL), 0);
    ck_assert_ptr_eq(made[1], exec);
    ck_assert_int_eq(binding_job(&bound, data, false, &place, &made[2], NULL), 0);
    ck_assert_str_eq(text_of(made[2]), "{\"stdin\":\"file:/x\",\"exec\":[\"convert\",\"1\"]}");
    ck_assert_int_eq(binding_job(&none, data, false, &place, &made[3], NULL), 0);
    ck_assert_ptr_eq(made[3], data);
    for (size_t i = 0; i < 4; i++)
        json_decref(made[i]);
}
END_TEST

TEST(data_of_another_system_may_hold_more_than_a_job)
{
    const char *const command[] = { "convert", "{data.f}", NULL };
    const struct binding bound = { .command = command }, open = { .allow_exec = true },
                         none = { 0 };
    SCOPED_JSON *data = parse("{\"f\": \"x\", \"exec\": [\"sh\"], \"timeout\": \"1s\", "
                              "\"backoff\": {\"delay\": 1}, \"id\": 7, \"queue\": {}, "
                              "\"limits\": {\"pids\": 9}, \"theirs\": 1}");
    SCOPED_JSON *made = NULL, *run = NULL, *refused = NULL;
    struct mandor_err err = { 0 };
    ck_assert_int_eq(binding_data(&bound, data, &place, &made, NULL), 0);
    ck_assert_str_eq(text_of(made), "{\"exec\":[\"convert\",\"x\"]}");
    ck_assert_int_eq(binding_data(&open, data, &place, &run, &err), 0);
    ck_assert_str_eq(text_of(run),
                     "{\"exec\":[\"sh\"],\"timeout\":\"1s\",\"limits\":{\"pids\":9}}");
    ck_assert_int_eq(binding_data(&none, data, &place, &refused, &err), -EACCES);
}
END_TEST

TEST(what_add_fills_in_for_a_shared_broker_is_harmless)
{
    SCOPED_JSON *defaults =
        parse("{\"stdout\": \"null:\", \"timeout\": \"1s\", \"pool\": \"p\", \"attempts\": 2}");
    SCOPED_JSON *kept = binding_harmless(defaults);
    ck_assert_str_eq(text_of(kept), "{\"timeout\":\"1s\",\"attempts\":2}");
    SCOPED_JSON *nothing = binding_harmless(NULL);
    ck_assert_uint_eq(json_object_size(nothing), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("binding");
    TCase *all = tcase_create("all");
    tcase_set_timeout(all, 120);
    tcase_add_test(all, placeholders_fill_a_place_in_one_argument);
    tcase_add_test(all, all_of_the_data_come_as_they_were_written);
    tcase_add_test(all, bytes_that_are_no_text_come_through);
    tcase_add_test(all, a_value_that_is_missing_or_would_be_an_option_is_refused);
    tcase_add_test(all, templates_and_keys_that_contradict_each_other_are_refused);
    tcase_add_test(all, a_shared_message_runs_only_what_its_queue_allows);
    tcase_add_test(all, a_local_job_is_taken_as_it_is_and_bare_data_by_the_binding);
    tcase_add_test(all, data_of_another_system_may_hold_more_than_a_job);
    tcase_add_test(all, what_add_fills_in_for_a_shared_broker_is_harmless);
    suite_add_tcase(suite, all);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int count = srunner_ntests_failed(runner);
    srunner_free(runner);
    return count == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
