/* test_units.c - durations, sizes, numbers, and what people meant. */
#include "base/units.h"

#include "lib/unit.h"

static struct mandor_err err;

static const struct {
    const char *text;
    int64_t ms;
    const char *printed;
} durations[] = {
    { "0", 0, "0" },
    { "500ms", 500, "500ms" },
    { "30s", 30000, "30s" },
    { "5m", 300000, "5m" },
    { "1h30m", 5400000, "1h30m" },
    { "7d", 604800000, "7d" },
    { "1d2h3m4s5ms", 93784005, "1d2h3m4s5ms" },
    { "90m", 5400000, "1h30m" },
    { "1.5s", 1500, "1500ms" },
    { "0.25h", 900000, "15m" },
    { "0s", 0, "0" },
    { "106751991167d", INT64_C(106751991167) * 86400000, "106751991167d" },
};

TEST(durations_are_read_exactly_and_printed_shortest)
{
    char text[UNITS_TEXT_SIZE];
    int64_t ms;

    for (size_t i = 0; i < ARRAY_LEN(durations); i++) {
        ck_assert_int_eq(units_parse_duration(durations[i].text, &ms, &err), 0);
        ck_assert_int_eq(ms, durations[i].ms);
        ck_assert_str_eq(units_print_duration(ms, text), durations[i].printed);
        ck_assert_int_eq(units_parse_duration(text, &ms, &err), 0);
        ck_assert_int_eq(ms, durations[i].ms);
    }
}

#define DURATION_WANT "expected a duration such as 500ms, 30s, 5m, 1h30m or 7d"
static const struct {
    const char *text, *message;
    int code;
} bad_durations[] = {
    { "", "empty, " DURATION_WANT, -EINVAL },
    { "30", "'30' lacks a unit, " DURATION_WANT, -EINVAL },
    { "-5s", "'-5s' is negative, " DURATION_WANT, -EINVAL },
    { "5x", "'5x' is wrong at character 2, " DURATION_WANT, -EINVAL },
    { "30m1h", "'30m1h' is wrong at character 5, " DURATION_WANT, -EINVAL },
    { "1m1m", "'1m1m' is wrong at character 4, " DURATION_WANT, -EINVAL },
    { "5m ", "'5m ' is wrong at character 3, " DURATION_WANT, -EINVAL },
    { "1.s", "'1.s' is wrong at character 3, " DURATION_WANT, -EINVAL },
    { "1.", "'1.' ends too early, " DURATION_WANT, -EINVAL },
    { "1.0005s", "'1.0005s' is not a whole number of milliseconds, " DURATION_WANT, -EINVAL },
    { "0.5ms", "'0.5ms' is not a whole number of milliseconds, " DURATION_WANT, -EINVAL },
    { "106751991168d", "'106751991168d' is too large, " DURATION_WANT, -ERANGE },
    { "99999999999999999999s", "'99999999999999999999s' is too large, " DURATION_WANT, -ERANGE },
};

TEST(a_bad_duration_says_what_and_where)
{
    for (size_t i = 0; i < ARRAY_LEN(bad_durations); i++) {
        int64_t ms = -7;
        ck_assert_int_eq(units_parse_duration(bad_durations[i].text, &ms, &err),
                         bad_durations[i].code);
        ck_assert_str_eq(err.msg, bad_durations[i].message);
        ck_assert_int_eq(err.fault, FAULT_CALLER);
        ck_assert_int_eq(ms, -7);
    }
}

static const struct {
    const char *text;
    int64_t bytes;
    const char *printed;
} sizes[] = {
    { "0", 0, "0" },
    { "100", 100, "100" },
    { "12B", 12, "12" },
    { "64K", 65536, "64K" },
    { "64k", 65536, "64K" },
    { "8MiB", 8388608, "8M" },
    { "512M", 536870912, "512M" },
    { "1.5G", 1610612736, "1536M" },
    { "1.1G", 1181116006, "1181116006" },
    { "2T", INT64_C(2) << 40, "2T" },
    { "9223372036854775807", INT64_MAX, "9223372036854775807" },
};

TEST(sizes_are_powers_of_1024)
{
    char text[UNITS_TEXT_SIZE];
    int64_t bytes;

    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        ck_assert_int_eq(units_parse_size(sizes[i].text, &bytes, &err), 0);
        ck_assert_int_eq(bytes, sizes[i].bytes);
        ck_assert_str_eq(units_print_size(bytes, text), sizes[i].printed);
    }
}

#define SIZE_WANT "expected a size such as 100, 64K, 512M, 8MiB or 1.5G"
static const struct {
    const char *text, *message;
    int code;
} bad_sizes[] = {
    { "", "empty, " SIZE_WANT, -EINVAL },
    { "-1", "'-1' is negative, " SIZE_WANT, -EINVAL },
    { "8MB", "'8MB' is wrong at character 2, " SIZE_WANT, -EINVAL },
    { "K", "'K' is wrong at character 1, " SIZE_WANT, -EINVAL },
    { "1.5", "'1.5' is not a whole number of bytes, " SIZE_WANT, -EINVAL },
    { "8388608T", "'8388608T' is too large, " SIZE_WANT, -ERANGE },
    { "9223372036854775808", "'9223372036854775808' is too large, " SIZE_WANT, -ERANGE },
};

TEST(a_bad_size_says_what_and_where)
{
    for (size_t i = 0; i < ARRAY_LEN(bad_sizes); i++) {
        int64_t bytes = -7;
        ck_assert_int_eq(units_parse_size(bad_sizes[i].text, &bytes, &err), bad_sizes[i].code);
        ck_assert_str_eq(err.msg, bad_sizes[i].message);
        ck_assert_int_eq(bytes, -7);
    }
}

TEST(whole_numbers_keep_their_range)
{
    int64_t value;

    ck_assert_int_eq(units_parse_int("-3", -5, 5, &value, &err), 0);
    ck_assert_int_eq(value, -3);
    ck_assert_int_eq(units_parse_int("-9223372036854775808", INT64_MIN, INT64_MAX, &value, &err),
                     0);
    ck_assert_int_eq(value, INT64_MIN);
    ck_assert_int_eq(units_parse_int("6", 1, 5, &value, &err), -ERANGE);
    ck_assert_str_eq(err.msg, "'6' is out of range, expected a whole number from 1 to 5");
    ck_assert_int_eq(units_parse_int("0", 1, INT64_MAX, &value, &err), -ERANGE);
    ck_assert_str_eq(err.msg, "'0' is out of range, expected a whole number of at least 1");
    ck_assert_int_eq(units_parse_int("99999999999999999999", 1, 5, &value, &err), -ERANGE);
    ck_assert_int_eq(units_parse_int("1e3", 1, 5, &value, &err), -EINVAL);
    ck_assert_str_eq(err.msg, "'1e3' is wrong at character 2, expected a whole number");
    ck_assert_int_eq(units_parse_int(" 1", 1, 5, &value, &err), -EINVAL);
    ck_assert_int_eq(units_parse_int("-", -5, 5, &value, &err), -EINVAL);
    ck_assert_str_eq(err.msg, "'-' is no number, expected a whole number");
}

TEST(extremes_print_within_the_buffer)
{
    char text[UNITS_TEXT_SIZE];

    ck_assert_str_eq(units_print_duration(INT64_MAX, text), "106751991167d7h12m55s807ms");
    ck_assert_str_eq(units_print_duration(INT64_MIN, text), "-106751991167d7h12m55s808ms");
    ck_assert_str_eq(units_print_size(INT64_MIN, text), "-8388608T");
    ck_assert_uint_lt(strlen(units_human_size(INT64_MAX, text)), UNITS_TEXT_SIZE);
    ck_assert_uint_lt(strlen(units_human_duration(INT64_MAX, text)), UNITS_TEXT_SIZE);
}

TEST(people_read_rounded_values)
{
    char text[UNITS_TEXT_SIZE];

    ck_assert_str_eq(units_human_size(0, text), "0 B");
    ck_assert_str_eq(units_human_size(1023, text), "1023 B");
    ck_assert_str_eq(units_human_size(1024, text), "1.0 KiB");
    ck_assert_str_eq(units_human_size(1258291, text), "1.2 MiB");
    ck_assert_str_eq(units_human_size((1 << 20) - 1, text), "1.0 MiB"); /* not 1024.0 KiB */
    ck_assert_str_eq(units_human_duration(0, text), "0 ms");
    ck_assert_str_eq(units_human_duration(3400, text), "3.4 s");
    ck_assert_str_eq(units_human_duration(59999, text), "59.9 s");
    ck_assert_str_eq(units_human_duration(125000, text), "2m 5s");
    ck_assert_str_eq(units_human_duration(5400000, text), "1h 30m");
    ck_assert_str_eq(units_human_duration(INT64_C(183600000), text), "2d 3h");
}

TEST(the_nearest_word_is_near_enough)
{
    static const char *const words[] = { "timeout", "idle_timeout", "env", "priority", "queue" };

    ck_assert_str_eq(units_nearest("timout", words, ARRAY_LEN(words)), "timeout");
    ck_assert_str_eq(units_nearest("tiemout", words, ARRAY_LEN(words)), "timeout"); /* swapped */
    ck_assert_str_eq(units_nearest("idel_timout", words, ARRAY_LEN(words)), "idle_timeout");
    ck_assert_str_eq(units_nearest("ens", words, ARRAY_LEN(words)), "env");
    ck_assert_ptr_null(units_nearest("x", words, ARRAY_LEN(words)));
    ck_assert_ptr_null(units_nearest("", words, ARRAY_LEN(words)));
    ck_assert_ptr_null(units_nearest("concurrency", words, ARRAY_LEN(words)));
    char word[300];
    memset(word, 'a', sizeof word - 1);
    word[sizeof word - 1] = '\0';
    ck_assert_ptr_null(units_nearest(word, words, ARRAY_LEN(words)));
}

UNIT_MAIN("units")
