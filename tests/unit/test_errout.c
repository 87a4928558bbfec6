/* test_errout.c - standard error that nobody reads holds nobody up, and what was left out is told of. */
#include "base/errout.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>

#include "base/log.h"
#include "lib/unit.h"

#define LINES 40000 /* of some 80 bytes: three times as many as there is room for */

static int pipe_fds[2], saved = -1;
static char *got;
static size_t got_len;

static void begin(void)
{
    ck_assert_int_eq(pipe2(pipe_fds, O_CLOEXEC), 0);
    saved = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 10);
    ck_assert_int_ge(dup2(pipe_fds[1], STDERR_FILENO), 0);
    log_setup(LOG_LOGFMT, LOG_INFO);
    ck_assert_int_eq(errout_start(), 0);
}

/* Read until `mark` has come, or nothing comes for a minute. */
static void read_until(const char *mark)
{
    while (got == NULL || memmem(got, got_len, mark, strlen(mark)) == NULL) {
        ck_assert_int_eq(poll(&(struct pollfd){ .fd = pipe_fds[0], .events = POLLIN }, 1, 60000),
                         1);
        got = realloc(got, got_len + 65537);
        ssize_t n = read(pipe_fds[0], got + got_len, 65536);
        ck_assert_int_gt(n, 0);
        got_len += (size_t)n;
        got[got_len] = 0;
    }
}

static void end(void)
{
    errout_stop(60000);
    ck_assert_int_ge(dup2(saved, STDERR_FILENO), 0);
}

/* Every line is whole and in order; returns how many messages `n=…` came and how many were said to be dropped. */
static void count(int *ret_lines, int *ret_dropped)
{
    int last = -1;
    *ret_lines = *ret_dropped = 0;
    for (char *line = strtok(got, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        ck_assert_msg(strncmp(line, "ts=", 3) == 0 && line[strlen(line) - 1] == '"', "'%s'", line);
        const char *dropped = strstr(line, " dropped="), *number = strstr(line, "msg=\"n=");
        if (dropped != NULL)
            *ret_dropped += atoi(dropped + 9);
        if (number == NULL)
            continue;
        ck_assert_int_gt(atoi(number + 7), last);
        last = atoi(number + 7);
        (*ret_lines)++;
    }
}

TEST(what_nobody_reads_holds_nobody_up_and_what_was_left_out_is_counted)
{
    int lines, dropped;

    begin();
    for (int i = 0; i < LINES; i++) /* would never return */
        log_info("n=%06d, a line of a length that is not unusual", i);
    errout_flush(1); /* bounded too */
    read_until("n=006000,");
    log_info("the end"); /* there is room again */
    read_until("the end");
    end();
    count(&lines, &dropped);
    ck_assert_int_gt(dropped, 1000);
    ck_assert_int_eq(lines + dropped, LINES);
}

TEST(nothing_is_left_out_where_somebody_reads)
{
    int lines, dropped;

    begin();
    for (int i = 0; i < 20000; i += 1000) {
        char mark[32];
        for (int k = 0; k < 1000; k++)
            log_info("n=%06d", i + k);
        (void)snprintf(mark, sizeof mark, "n=%06d\"", i + 999);
        read_until(mark);
    }
    end();
    count(&lines, &dropped);
    ck_assert_int_eq(lines, 20000);
    ck_assert_int_eq(dropped, 0);
}

TEST(a_stop_writes_what_is_left_and_is_bounded_where_nobody_reads)
{
    begin();
    log_info("first");
    errout_stop(60000);
    log_info("by ourselves");
    read_until("by ourselves");
    ck_assert_int_eq(errout_start(), 0); /* and again */
    for (int i = 0; i < 5000; i++)
        log_info("n=%06d, a line of a length that is not unusual", i);
    errout_stop(50);
    log_info("nothing comes after that, and nobody waits"); /* would never return */
    ck_assert_int_gt((int)errout_take_lost(), 0);
    ck_assert_int_ge(dup2(saved, STDERR_FILENO), 0);
}

TEST(a_reader_that_went_away_is_no_reason_to_stop)
{
    begin();
    (void)signal(SIGPIPE, SIG_IGN);
    (void)close(pipe_fds[0]);
    ck_assert_int_ge(dup2(pipe_fds[1], STDERR_FILENO), 0);
    for (int i = 0; i < LINES; i++)
        log_info("n=%06d", i);
    end();
    ck_assert_int_gt((int)errout_take_lost(), 0);
}

UNIT_MAIN("errout")
