/* test_base.c - errors, buffers, lists, hash, digits, random numbers, clocks, metrics. */
#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/hash.h"
#include "base/hex.h"
#include "base/json.h"
#include "base/list.h"
#include "base/metrics.h"
#include "base/random.h"
#include "base/utf8.h"

#include "lib/unit.h"

TEST(min_and_max_nest_and_evaluate_once)
{
    int calls = 0;

    ck_assert_int_eq(MAX(MIN(++calls, 5), MIN(3, 2)), 2);
    ck_assert_int_eq(calls, 1);
}

TEST(bytes_are_printed_as_hex_digits)
{
    char text[7];

    ck_assert_str_eq(hex_encode("\x00\x9f\xff", 3, text), "009fff");
    ck_assert_str_eq(hex_encode("", 0, text), "");
}

TEST(random_numbers_spread_over_their_range)
{
    uint64_t state = random_seed(), other = random_seed();
    double least = 1, most = 0;

    ck_assert_uint_ne(random_next(&state), random_next(&other));
    for (int i = 0; i < 1000; i++) {
        double number = random_01(&state);
        ck_assert(number >= 0 && number < 1);
        least = MIN(least, number);
        most = MAX(most, number);
    }
    ck_assert(least < 0.1 && most > 0.9);
}

/* ---- err ---- */

TEST(an_error_carries_code_fault_and_the_systems_words)
{
    struct mandor_err err;

    ck_assert_int_eq(err_set(&err, -ENOENT, FAULT_HOST, "open '%s'", "x"), -ENOENT);
    ck_assert_str_eq(err.msg, "open 'x': No such file or directory");
    ck_assert_int_eq(err.code, -ENOENT);
    ck_assert_int_eq(err.fault, FAULT_HOST);
    ck_assert_int_eq(err_set(&err, -EINVAL, FAULT_CALLER, "bad"), -EINVAL);
    ck_assert_str_eq(err.msg, "bad");
    ck_assert_int_eq(err_set(NULL, -EIO, FAULT_HOST, "nobody listens"), -EIO);
    ck_assert_int_eq(err_say(&err, -EIO, FAULT_REMOTE, "it says no"), -EIO);
    ck_assert_str_eq(err.msg, "it says no");
    ck_assert_int_eq(err.fault, FAULT_REMOTE);
    (void)err_set(&err, -4095 /* UV_EOF */, FAULT_REMOTE, "read");
    ck_assert_str_eq(err.msg, "read: end of file");
}

TEST(wrapping_adds_context_and_keeps_the_cause)
{
    struct mandor_err err;

    (void)err_set(&err, -EACCES, FAULT_JOB, "exec 'x'");
    ck_assert_int_eq(err_wrap(&err, -EACCES, "start job %d", 7), -EACCES);
    ck_assert_str_eq(err.msg, "start job 7: exec 'x'");
    ck_assert_int_eq(err.fault, FAULT_JOB);
    err_clear(&err);
    ck_assert_int_eq(err_wrap(&err, -EIO, "load"), -EIO);
    ck_assert_str_eq(err.msg, "load: Input/output error");
    ck_assert_int_eq(err.code, -EIO);
}

TEST(a_long_message_is_cut_between_characters)
{
    struct mandor_err err;
    char text[600];

    for (size_t offset = 0; offset < 4; offset++) {
        memset(text, 'x', offset);
        for (size_t i = offset; i + 2 < sizeof text; i += 2)
            memcpy(text + i, "\xc3\xa9", 2);
        text[sizeof text - 4 + offset % 2] = '\0';
        (void)err_set(&err, -EINVAL, FAULT_CALLER, "%s", text);
        size_t len = strlen(err.msg);
        ck_assert_uint_ge(len, sizeof err.msg - 3);
        ck_assert_str_eq(err.msg + len - 3, "...");
        ck_assert(utf8_clean(err.msg, len));
        for (int i = 0; i < 5; i++)
            (void)err_wrap(&err, -EINVAL, "a layer more");
        ck_assert_str_eq(err.msg + strlen(err.msg) - 3, "...");
    }
}

TEST(exit_codes_follow_the_fault)
{
    static const struct {
        int code;
        enum mandor_fault fault;
        int want;
    } rows[] = {
        { 0, MANDOR_FAULT_NONE, 0 },
        { -EINVAL, FAULT_CALLER, 2 },
        { -ENOENT, FAULT_CALLER, 3 },
        { -EBUSY, FAULT_CALLER, 4 },
        { -EIO, FAULT_JOB, 1 },
        { -EIO, FAULT_REMOTE, 125 },
        { -ENOENT, FAULT_HOST, 125 },
        { -EPROTO, FAULT_BUG, 125 },
        { -ETIMEDOUT, FAULT_CALLER, 124 },
        { -ETIMEDOUT, FAULT_REMOTE, 124 },
    };

    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct mandor_err err = { .code = rows[i].code, .fault = rows[i].fault };
        ck_assert_int_eq(err_exit_code(&err), rows[i].want);
    }
}

/* ---- buf ---- */

TEST(a_buffer_grows_and_is_always_text)
{
    struct buf buf = { 0 };

    ck_assert_int_eq(buf_adds(&buf, ""), 0);
    ck_assert_str_eq(buf.data, "");
    for (int i = 0; i < 1000; i++)
        ck_assert_int_eq(buf_addf(&buf, "%d,", i), 0);
    ck_assert_uint_eq(buf.len, strlen(buf.data));
    ck_assert_uint_eq(buf.len, 3890);
    buf_consume(&buf, 2);
    ck_assert_mem_eq(buf.data, "1,2,", 4);
    buf_consume(&buf, buf.len);
    ck_assert_str_eq(buf.data, "");
    ck_assert_int_eq(buf_add(&buf, "a\0b", 3), 0);
    ck_assert_uint_eq(buf.len, 3);
    buf_clear(&buf);
    ck_assert_str_eq(buf.data, "");
    ck_assert_int_eq(buf_reserve(&buf, SIZE_MAX / 2), -ENOMEM);
    ck_assert_uint_eq(buf.len, 0);
    buf_done(&buf);
    ck_assert_ptr_null(buf.data);
}

TEST(a_stolen_buffer_is_text_even_when_empty)
{
    struct buf buf = { 0 };

    char *text = buf_steal(&buf);
    ck_assert_str_eq(text, "");
    free(text);
    ck_assert_int_eq(buf_adds(&buf, "x"), 0);
    text = buf_steal(&buf);
    ck_assert_str_eq(text, "x");
    ck_assert_ptr_null(buf.data);
    free(text);
}

/* ---- list ---- */

struct item {
    int n;
    struct list link;
};

TEST(a_list_keeps_order_and_lets_go)
{
    struct list head = LIST_INIT(head), other = LIST_INIT(other);
    struct item items[5];

    for (int i = 0; i < 5; i++) {
        items[i].n = i;
        list_push_back(i < 3 ? &head : &other, &items[i].link);
    }
    list_splice_back(&head, &other);
    ck_assert(list_empty(&other));
    int want = 0;
    LIST_FOREACH(it, &head, struct item, link) {
        ck_assert_int_eq(it->n, want++);
        if (it->n % 2 == 0)
            list_remove(&it->link);
    }
    ck_assert_int_eq(want, 5);
    list_remove(&items[0].link); /* a second time: harmless */
    ck_assert_int_eq(LIST_ENTRY(list_pop_front(&head), struct item, link)->n, 1);
    ck_assert_int_eq(LIST_ENTRY(list_pop_front(&head), struct item, link)->n, 3);
    ck_assert_ptr_null(list_pop_front(&head));
}

/* ---- hash ---- */

TEST(a_hash_agrees_with_an_array_under_random_use)
{
    enum { KEYS = 3000 };
    static char present[KEYS]; /* its elements' addresses are the values, too */
    struct hash *hash;
    unsigned seed = 42;
    size_t count = 0;

    ck_assert_int_eq(hash_new(&hash), 0);
    for (int step = 0; step < 40000; step++) {
        int i = rand_r(&seed) % KEYS;
        uint64_t key = (uint64_t)i << 32; /* keys that differ only high up */
        switch (rand_r(&seed) % 3) {
        case 0:
            ck_assert_int_eq(hash_put(hash, key, &present[i]), present[i] ? -EEXIST : 0);
            count += !present[i];
            present[i] = 1;
            break;
        case 1:
            ck_assert_ptr_eq(hash_take(hash, key), present[i] ? &present[i] : NULL);
            count -= (size_t)present[i];
            present[i] = 0;
            break;
        default:
            ck_assert_ptr_eq(hash_get(hash, key), present[i] ? &present[i] : NULL);
        }
        ck_assert_uint_eq(hash_count(hash), count);
    }
    ck_assert_ptr_null(hash_free(hash));
    ck_assert_ptr_null(hash_free(NULL));
}

static void add_one(void *value, void *arg)
{
    *(int *)arg += *(int *)value;
}

TEST(text_keys_are_copied)
{
    struct hash *hash;
    int one = 1, two = 2, sum = 0;
    char key[] = "a";

    ck_assert_int_eq(hash_new(&hash), 0);
    ck_assert_int_eq(hash_puts(hash, key, &one), 0);
    key[0] = 'b';
    ck_assert_int_eq(hash_puts(hash, key, &two), 0);
    key[0] = 'c';
    ck_assert_int_eq(hash_puts(hash, "a", &two), -EEXIST);
    ck_assert_ptr_eq(hash_gets(hash, "a"), &one);
    ck_assert_ptr_eq(hash_gets(hash, "b"), &two);
    ck_assert_ptr_null(hash_gets(hash, "c"));
    hash_each(hash, add_one, &sum);
    ck_assert_int_eq(sum, 3);
    ck_assert_ptr_eq(hash_takes(hash, "a"), &one);
    ck_assert_ptr_null(hash_takes(hash, "a"));
    ck_assert_uint_eq(hash_count(hash), 1);
    hash_free(hash);
}

/* ---- clock ---- */

TEST(times_print_as_rfc_3339)
{
    static const struct {
        int64_t ms;
        const char *text;
    } rows[] = {
        { 0, "1970-01-01T00:00:00.000Z" },
        { 1769860800123, "2026-01-31T12:00:00.123Z" },
        { -1, "1969-12-31T23:59:59.999Z" },
        { INT64_C(-62135596800000), "0001-01-01T00:00:00.000Z" },
        { INT64_MAX, "9999-12-31T23:59:59.999Z" },
    };
    char text[CLOCK_RFC3339_SIZE];

    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        ck_assert_str_eq(clock_rfc3339(rows[i].ms, text), rows[i].text);
}

TEST(clocks_go_forward)
{
    int64_t ns = clock_mono_ns(), ms = clock_mono_ms(), boot = clock_boot_ms();

    ck_assert_int_ge(clock_mono_ns(), ns);
    ck_assert_int_ge(clock_mono_ms(), ms);
    ck_assert_int_ge(clock_boot_ms(), boot);
    ck_assert_int_ge(boot + 1, ms); /* the boot clock counts sleep, too */
    ck_assert_int_gt(clock_wall_ms(), INT64_C(1700000000000));
    ck_assert_uint_eq(strlen(clock_boot_id()), 36);
}

/* ---- metrics ---- */

TEST(quantiles_are_within_seven_percent)
{
    static const int64_t tops[] = { 10, 1000, 123456789, INT64_MAX / 4 };
    json_t *json = metrics_json();

    ck_assert_int_eq(
        json_integer_value(json_object_get(json_object_get(json, "loop_lag_us"), "count")), 0);
    json_decref(json);
    for (size_t i = 0; i < ARRAY_LEN(tops); i++)
        for (int k = 1; k <= 100; k++)
            metric_observe((enum metric_histogram)i, tops[i] / 100 * k + tops[i] % 100);
    for (size_t i = 1; i < ARRAY_LEN(tops); i++)
        for (int q = 1; q <= 100; q++) {
            double want = (double)(tops[i] / 100 * q + tops[i] % 100);
            double got = (double)metric_quantile((enum metric_histogram)i, q / 100.0);
            ck_assert_double_ge(got, want * 0.999999);
            ck_assert_double_le(got, want * 1.07);
        }
    metric_observe(METRIC_loop_lag_us, INT64_MAX);
    metric_observe(METRIC_loop_lag_us, -5); /* counted as 0 */
    ck_assert_int_eq(metric_quantile(METRIC_loop_lag_us, 1), INT64_MAX);
    ck_assert_int_eq(metric_quantile(METRIC_loop_lag_us, 0), 0);
}

TEST(counters_stand_in_the_json_by_name)
{
    metric_add(METRIC_spawns, 3);
    metric_add(METRIC_spawns, 2);
    ck_assert_int_eq(metric_get(METRIC_spawns), 5);
    json_t *json = metrics_json();
    ck_assert_int_eq(json_integer_value(json_object_get(json, "spawns")), 5);
    ck_assert_uint_eq(json_object_size(json), METRIC_COUNTERS + METRIC_HISTOGRAMS);
    json_decref(json);
}

UNIT_MAIN("base")
