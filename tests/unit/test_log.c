/* test_log.c - one event, one line, one write. */
#include "base/log.h"

#include <fcntl.h>

#include "base/json.h"
#include "lib/unit.h"

static int saved_stderr = -1;
static char captured[16384];

/* Send standard error into a pipe; end() brings it back and gives what came. */
static void begin(int flags, int fds[2])
{
    ck_assert_int_eq(pipe2(fds, O_CLOEXEC | flags), 0);
    saved_stderr = dup(STDERR_FILENO);
    ck_assert_int_ge(dup2(fds[1], STDERR_FILENO), 0);
}

static const char *end(int fds[2])
{
    ck_assert_int_ge(dup2(saved_stderr, STDERR_FILENO), 0);
    (void)close(saved_stderr);
    (void)close(fds[1]);
    size_t len = 0;
    for (ssize_t n; (n = read(fds[0], captured + len, sizeof captured - 1 - len)) > 0;)
        len += (size_t)n;
    captured[len] = '\0';
    (void)close(fds[0]);
    return captured;
}

TEST(a_line_has_time_level_ids_and_message)
{
    int fds[2];

    log_setup(LOG_LOGFMT, LOG_INFO);
    begin(0, fds);
    log_event(LOG_WARN, "17", 2, "grace %d ms", 5);
    log_event(LOG_DEBUG, "17", 2, "not printed");
    log_info("no ids");
    const char *text = end(fds);
    ck_assert_mem_eq(text, "ts=", 3);
    ck_assert_int_eq(text[26], 'Z');
    ck_assert_msg(strstr(text, "Z level=warn job=17 attempt=2 msg=\"grace 5 ms\"\nts=") != NULL,
                  "%s", text);
    ck_assert_msg(strstr(text, "Z level=info msg=\"no ids\"\n") != NULL, "%s", text);
    ck_assert_ptr_null(strstr(text, "not printed"));
}

TEST(nothing_in_a_message_can_forge_a_line_or_speak_to_a_terminal)
{
    int fds[2];

    log_setup(LOG_LOGFMT, LOG_INFO);
    begin(0, fds);
    log_event(LOG_INFO, "a b\n", 1, "x\n\"y\" \\ \x1b[2J \x7f \xff \xc2\x9b \xc3\xa9\tz\r");
    const char *text = end(fds);
    ck_assert_msg(strstr(text, "job=\"a b\\n\" attempt=1 "
                               "msg=\"x\\n\\\"y\\\" \\\\ \\u001b[2J \\u007f \xef\xbf\xbd \\u009b "
                               "\xc3\xa9\\tz\\u000d\"\n") != NULL,
                  "%s", text);
    ck_assert_ptr_eq(strchr(text, '\n'), text + strlen(text) - 1);
}

TEST(a_json_line_is_json_whatever_is_in_it)
{
    struct mandor_err err;
    int fds[2];
    json_t *json;

    log_setup(LOG_JSON, LOG_INFO);
    begin(0, fds);
    log_event(LOG_ERROR, "17", 2, "x\n\"\xff\x1b\x7f\\");
    const char *text = end(fds);
    ck_assert_msg(json_parse(text, strlen(text), &json, &err) == 0, "%s", err.msg);
    ck_assert_str_eq(json_string_value(json_object_get(json, "level")), "error");
    ck_assert_str_eq(json_string_value(json_object_get(json, "job")), "17");
    ck_assert_int_eq(json_integer_value(json_object_get(json, "attempt")), 2);
    ck_assert_str_eq(json_string_value(json_object_get(json, "msg")),
                     "x\n\"\xef\xbf\xbd\x1b\x7f\\");
    json_decref(json);
}

TEST(a_long_message_is_cut_and_the_line_still_well_formed)
{
    static char long_text[9000];
    struct mandor_err err;

    for (int format = LOG_LOGFMT; format <= LOG_JSON; format++)
        for (size_t extra = 0; extra < 7; extra++) {
            int fds[2];
            json_t *json;
            memset(long_text, '\n', sizeof long_text - 1);
            memset(long_text, 'x', extra);
            log_setup((enum log_format)format, LOG_INFO);
            begin(0, fds);
            log_error("%s", long_text);
            const char *text = end(fds);
            size_t len = strlen(text);
            ck_assert_uint_le(len, 4096);
            ck_assert_uint_ge(len, 4000);
            ck_assert_str_eq(text + len - (format == LOG_JSON ? 6 : 5),
                             format == LOG_JSON ? "...\"}\n" : "...\"\n");
            if (format == LOG_JSON) {
                ck_assert_int_eq(json_parse(text, len, &json, &err), 0);
                json_decref(json);
            }
        }
}

TEST(lines_that_could_not_be_written_are_counted)
{
    int fds[2], lost = 0;
    char sink[65536];

    log_setup(LOG_LOGFMT, LOG_INFO);
    begin(O_NONBLOCK, fds);
    ck_assert_int_eq(fcntl(fds[1], F_SETPIPE_SZ, 4096), 4096);
    for (; lost < 100; lost++) /* 4096 bytes are full long before */
        log_info("%080d", lost);
    ck_assert_int_gt(read(fds[0], sink, sizeof sink), 0);
    log_info("heard again");
    const char *text = end(fds);
    const char *dropped = strstr(text, "dropped=");
    ck_assert_msg(dropped != NULL, "%s", text);
    ck_assert_int_gt(atoi(dropped + 8), 50);
    ck_assert_ptr_nonnull(strstr(dropped, "msg=\"heard again\"\n"));
}

TEST(debug_lines_go_by_topic_and_by_toggle)
{
    int fds[2];

    ck_assert_int_eq(setenv("MANDOR_DEBUG", "child,stream", 1), 0);
    log_setup(LOG_LOGFMT, LOG_INFO);
    ck_assert(log_debug_on("child") && log_debug_on("stream"));
    ck_assert(!log_debug_on("chil") && !log_debug_on("broker"));
    log_toggle_debug();
    ck_assert(log_debug_on("broker"));
    log_toggle_debug();
    ck_assert(!log_debug_on("broker"));
    begin(0, fds);
    log_debug("child", "pid %d", 7);
    log_debug("broker", "silent");
    const char *text = end(fds);
    ck_assert_msg(strstr(text, "level=debug topic=child msg=\"pid 7\"\n") != NULL, "%s", text);
    ck_assert_ptr_null(strstr(text, "silent"));
}

UNIT_MAIN("log")
