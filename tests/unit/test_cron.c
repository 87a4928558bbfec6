/* test_cron.c - patterns of repeated times and time zones, beside the parser that BullMQ uses (tests/vectors/cron). */
#include "job/cron.h"

#include <stdio.h>
#include <time.h>

#include "lib/unit.h"

static struct mandor_err err;

TEST(next_times_are_those_of_the_stock_parser)
{
    char line[512], *parts[4];
    int rows = 0, wrong = 0;
    FILE *file = fopen(VECTORS, "r");

    ck_assert_ptr_nonnull(file);
    while (fgets(line, sizeof line, file) != NULL) {
        char *rest = line;
        for (int i = 0; i < 4; i++)
            parts[i] = strsep(&rest, "\t\n");
        int64_t next = 0;
        int r = cron_next(parts[0], parts[1], strtoll(parts[2], NULL, 10), &next, &err);
        rows++;
        if (r < 0 || next != strtoll(parts[3], NULL, 10)) {
            wrong++;
            (void)fprintf(stderr, "%s %s after %s: %" PRId64 " (%d), expected %s\n", parts[0],
                          parts[1], parts[2], next, r, parts[3]);
        }
    }
    (void)fclose(file);
    ck_assert_int_gt(rows, 500);
    ck_assert_int_eq(wrong, 0);
}

TEST(zones_have_the_offsets_of_the_system)
{
    static const char *const names[] = { "Europe/Berlin",     "America/New_York",
                                         "Asia/Kolkata",      "Asia/Kathmandu",
                                         "Pacific/Apia",      "Africa/Casablanca",
                                         "America/Sao_Paulo", "Australia/Lord_Howe" };

    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        struct zone *zone;
        ck_assert_int_eq(zone_load(names[i], &zone, &err), 0);
        ck_assert_int_eq(setenv("TZ", names[i], 1), 0);
        tzset();
        for (int64_t at = -2000000000; at < INT64_C(4000000000); at += 1234567) {
            struct tm local;
            time_t when = (time_t)at;
            ck_assert_ptr_nonnull(localtime_r(&when, &local));
            ck_assert_msg(zone_offset(zone, at) == local.tm_gmtoff, "%s at %" PRId64, names[i], at);
            struct civil civil;
            civil_from_seconds(at + local.tm_gmtoff, &civil);
            ck_assert_int_eq(civil.year, local.tm_year + 1900);
            ck_assert_int_eq(civil.month, local.tm_mon + 1);
            ck_assert_int_eq(civil.day, local.tm_mday);
            ck_assert_int_eq(civil.weekday, local.tm_wday);
            ck_assert_int_eq(civil_to_seconds(&civil), at + local.tm_gmtoff);
        }
        zone_free(zone);
    }
}

TEST(what_is_no_pattern_is_refused_with_its_reason)
{
    static const char *const wrong[] = {
        "",          "* * * *",      "* * * * * * *", "60 * * * *",  "* 24 * * *",
        "* * 0 * *", "* * * 13 *",   "* * * * 8",     "5-1 * * * *", "*/0 * * * *",
        "a * * * *", "1,,2 * * * *", "L * * * *",     "* * * * 5#6", "@never"
    };
    struct cron cron;

    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        ck_assert_msg(cron_parse(wrong[i], &cron, &err) == -EINVAL, "'%s'", wrong[i]);
        ck_assert_str_ne(err.msg, "");
    }
}

TEST(a_time_that_never_comes_is_said_so)
{
    int64_t next;

    ck_assert_int_eq(cron_next("0 0 30 2 *", "UTC", 0, &next, &err), -ENOENT);
    ck_assert_int_eq(cron_next("0 0 * * *", "Nowhere/At_All", 0, &next, &err), -ENOENT);
    ck_assert_int_eq(cron_next("0 0 * * *", "../../etc/passwd", 0, &next, &err), -ENOENT);
}

TEST(a_torn_zone_file_is_no_zone)
{
    char bytes[8192];
    FILE *file = fopen("/usr/share/zoneinfo/Europe/Berlin", "r");
    ck_assert_ptr_nonnull(file);
    size_t len = fread(bytes, 1, sizeof bytes, file);
    (void)fclose(file);

    for (size_t cut = 0; cut < len - 2; cut++) { /* without its last line it is still one */
        struct zone *zone = NULL;
        if (zone_parse(bytes, cut, &zone) == 0)
            (void)zone_offset(zone, 1700000000);
        zone_free(zone);
    }
}

UNIT_MAIN("cron")
