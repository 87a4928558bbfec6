/* libmandor from the outside: only its installed header, linked to the shared library. */
#include <dirent.h>
#include <errno.h>
#include <glob.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <mandor/mandor.h>

#include "lib/unit.h"

struct seen {
    uv_loop_t *loop;
    struct mandor *mandor;
    struct mandor_process *process;
    char out[256], err[256], cause[32], error[256], result[64], progress[64];
    size_t out_len, err_len, calls_while_paused;
    bool paused;
    int exit_code, signal, ended, closed;
    int64_t stdout_bytes, descendants_killed;
    uv_timer_t timer;
};

static void on_closed(void *arg)
{
    ((struct seen *)arg)->closed++;
}

static void on_output(struct mandor_process *process, enum mandor_stream stream, const void *bytes,
                      size_t len, void *arg)
{
    struct seen *seen = arg;
    char *text = stream == MANDOR_STDOUT ? seen->out : seen->err;
    size_t *used = stream == MANDOR_STDOUT ? &seen->out_len : &seen->err_len;

    (void)process;
    if (seen->paused)
        seen->calls_while_paused++;
    for (size_t i = 0; i < len && *used + i < sizeof seen->out - 1; i++)
        text[*used + i] = ((const char *)bytes)[i];
    *used += len;
}

static void on_progress(struct mandor_process *process, const char *json, void *arg)
{
    (void)process;
    (void)snprintf(((struct seen *)arg)->progress, 64, "%s", json);
}

static void on_ended(struct mandor_process *process, const struct mandor_result *result, void *arg)
{
    struct seen *seen = arg;

    (void)process;
    seen->ended++;
    seen->exit_code = result->exit_code;
    seen->signal = result->signal;
    seen->stdout_bytes = result->stdout_bytes;
    seen->descendants_killed = result->descendants_killed;
    (void)snprintf(seen->cause, sizeof seen->cause, "%s", result->cause);
    (void)snprintf(seen->error, sizeof seen->error, "%s", result->error);
    (void)snprintf(seen->result, sizeof seen->result, "%s",
                   result->result != NULL ? result->result : "");
    mandor_close(seen->mandor, on_closed, seen);
}

static const struct mandor_callbacks all = { .on_output = on_output,
                                             .on_progress = on_progress,
                                             .on_ended = on_ended };

static void open_context(struct seen *seen)
{
    struct mandor_err err;

    *seen = (struct seen){ .loop = uv_default_loop() };
    ck_assert_msg(mandor_new(seen->loop, NULL, NULL, &seen->mandor, &err) == 0, "%s", err.msg);
}

static void spawn(struct seen *seen, const char *job)
{
    struct mandor_err err;

    open_context(seen);
    ck_assert_msg(mandor_spawn(seen->mandor, job, &all, seen, &seen->process, &err) == 0, "%s",
                  err.msg);
}

static void finish(struct seen *seen)
{
    (void)uv_run(seen->loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(seen->ended, 1);
    ck_assert_int_eq(seen->closed, 1);
}

TEST(bytes_and_end_arrive_with_what_the_program_said)
{
    struct seen seen;

    spawn(&seen,
          "{\"exec\": [\"sh\", \"-c\", \"echo out; echo err >&2; echo '{\\\"progress\\\": 5}' >&3; "
          "echo '{\\\"result\\\": [1]}' >&3; exit 7\"]}");
    finish(&seen);
    ck_assert_str_eq(seen.out, "out\n");
    ck_assert_str_eq(seen.err, "err\n");
    ck_assert_str_eq(seen.progress, "5");
    ck_assert_str_eq(seen.result, "[1]");
    ck_assert_str_eq(seen.cause, "exit");
    ck_assert_int_eq(seen.exit_code, 7);
}

TEST(a_bad_job_is_refused_with_the_key_that_is_wrong)
{
    struct seen seen;
    struct mandor_err err;

    open_context(&seen);
    ck_assert_int_eq(mandor_spawn(seen.mandor, "{\"exec\": [\"true\"], \"timout\": \"1s\"}", &all,
                                  &seen, NULL, &err),
                     -EINVAL);
    ck_assert_ptr_nonnull(strstr(err.msg, "timout"));
    ck_assert_int_eq(mandor_spawn(seen.mandor, "{", &all, &seen, NULL, &err), -EINVAL);
    ck_assert_int_eq(mandor_spawn(seen.mandor, "[]", &all, &seen, NULL, &err), -EINVAL);
    ck_assert_int_eq(mandor_spawn(seen.mandor, "{\"exec\": [\"true\"]}", NULL, &seen, NULL, &err),
                     -EINVAL);
    mandor_close(seen.mandor, on_closed, &seen);
    (void)uv_run(seen.loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(seen.closed, 1);
    ck_assert_int_eq(seen.ended, 0);
}

TEST(a_missing_program_ends_with_cause_spawn)
{
    struct seen seen;

    spawn(&seen, "{\"exec\": [\"/nonexistent/program\"]}");
    finish(&seen);
    ck_assert_str_eq(seen.cause, "spawn");
    ck_assert_ptr_nonnull(strstr(seen.error, "/nonexistent/program"));
}

static void resume_later(uv_timer_t *timer)
{
    struct seen *seen = timer->data;

    ck_assert_uint_eq(seen->calls_while_paused, 0);
    seen->paused = false;
    mandor_resume(seen->process, MANDOR_STDOUT);
    uv_close((uv_handle_t *)timer, NULL);
}

TEST(a_paused_stream_holds_its_bytes_back_and_loses_none)
{
    struct seen seen;

    spawn(&seen, "{\"exec\": [\"head\", \"-c\", \"3000000\", \"/dev/zero\"]}");
    seen.paused = true;
    mandor_pause(seen.process, MANDOR_STDOUT);
    (void)uv_timer_init(seen.loop, &seen.timer);
    seen.timer.data = &seen;
    (void)uv_timer_start(&seen.timer, resume_later, 300, 0);
    finish(&seen);
    ck_assert_uint_eq(seen.out_len, 3000000);
    ck_assert_int_eq(seen.stdout_bytes, 3000000);
}

static void stop_now(uv_timer_t *timer)
{
    struct seen *seen = timer->data;

    mandor_stop(seen->process, 0);
    uv_close((uv_handle_t *)timer, NULL);
}

TEST(stop_ends_the_tree_with_what_it_left_behind)
{
    struct seen seen;

    spawn(&seen, "{\"exec\": [\"sh\", \"-c\", \"setsid sleep 600 & sleep 600\"]}");
    (void)uv_timer_init(seen.loop, &seen.timer);
    seen.timer.data = &seen;
    (void)uv_timer_start(&seen.timer, stop_now, 200, 0);
    finish(&seen);
    ck_assert_str_eq(seen.cause, "cancelled");
}

/* The host's own children and signal dispositions are none of our business. */
TEST(the_host_keeps_its_children_and_its_signals)
{
    struct seen seen;
    struct sigaction before, after;
    sigset_t mask_before, mask_after;
    int status;

    (void)sigaction(SIGCHLD, NULL, &before);
    (void)sigprocmask(SIG_BLOCK, NULL, &mask_before);
    pid_t own = fork();
    if (own == 0)
        _exit(9);
    spawn(&seen, "{\"exec\": [\"sh\", \"-c\", \"sleep 0.2\"]}");
    finish(&seen);
    ck_assert_int_eq(waitpid(own, &status, 0), own);
    ck_assert_int_eq(WEXITSTATUS(status), 9);
    (void)sigaction(SIGCHLD, NULL, &after);
    (void)sigprocmask(SIG_BLOCK, NULL, &mask_after);
    ck_assert(before.sa_handler == after.sa_handler);
    for (int signum = 1; signum < NSIG; signum++)
        ck_assert_int_eq(sigismember(&mask_before, signum), sigismember(&mask_after, signum));
    ck_assert_int_eq(waitpid(-1, &status, WNOHANG), -1);
}

/* A host that never thought of SIGPIPE is not ended by a program that does not read its stdin. */
TEST(a_program_that_does_not_read_its_stdin_harms_nobody)
{
    struct seen seen;
    char *job = NULL;

    (void)signal(SIGPIPE, SIG_DFL);
    ck_assert_int_gt(asprintf(&job, "{\"exec\": [\"true\"], \"stdin\": \"inline:%0100000d\"}", 0),
                     0);
    spawn(&seen, job);
    finish(&seen);
    free(job);
    ck_assert_str_eq(seen.cause, "exit");
    ck_assert_int_eq(seen.exit_code, 0);
    ck_assert(signal(SIGPIPE, SIG_DFL) == SIG_DFL);
}

static size_t entries(const char *path)
{
    DIR *dir = opendir(path);
    size_t count = 0;

    ck_assert_ptr_nonnull(dir);
    while (readdir(dir) != NULL)
        count++;
    (void)closedir(dir);
    return count - 2; /* "." and ".." */
}

TEST(nothing_stays_behind_in_tmpdir)
{
    struct seen seen;
    char dir[] = "/tmp/test-libmandor-XXXXXX";

    ck_assert_ptr_nonnull(mkdtemp(dir));
    ck_assert_int_eq(setenv("TMPDIR", dir, 1), 0);
    spawn(&seen, "{\"exec\": [\"sh\", \"-c\", \"touch $TMPDIR/x\"]}");
    ck_assert_uint_eq(entries(dir), 1);
    finish(&seen);
    ck_assert_uint_eq(entries(dir), 0);
    ck_assert_int_eq(rmdir(dir), 0);
}

TEST(output_that_is_too_long_for_memory_goes_below_tmpdir)
{
    static const struct mandor_callbacks end_only = { .on_ended = on_ended };
    struct seen seen;
    struct mandor_err err;
    char dir[] = "/tmp/mandor-spill-XXXXXX", pattern[128], command[128];
    glob_t found = { 0 };
    struct stat st;

    ck_assert_ptr_nonnull(mkdtemp(dir));
    ck_assert_int_eq(setenv("TMPDIR", dir, 1), 0);
    open_context(&seen);
    ck_assert_int_eq(mandor_spawn(seen.mandor,
                                  "{\"exec\": [\"head\", \"-c\", \"100000\", \"/dev/zero\"], "
                                  "\"stdout\": \"auto:\"}",
                                  &end_only, &seen, NULL, &err),
                     0);
    finish(&seen);
    ck_assert_int_eq(seen.stdout_bytes, 100000);
    (void)snprintf(pattern, sizeof pattern, "%s/mandor-*/output/*/1.stdout", dir);
    ck_assert_int_eq(glob(pattern, 0, NULL, &found), 0);
    ck_assert_uint_eq(found.gl_pathc, 1);
    ck_assert_int_eq(stat(found.gl_pathv[0], &st), 0);
    ck_assert_int_eq(st.st_size, 100000);
    globfree(&found);
    (void)snprintf(command, sizeof command, "rm -r %s", dir);
    ck_assert_int_eq(system(command), 0);
}

TEST(sinks_and_sources_on_other_machines_are_refused_by_name)
{
    static const struct {
        const char *keys, *word;
    } jobs[] = { { "\"stdout\": \"s3://bucket/key\"",
                   "stdout: libmandor has sources and sinks on this machine only" },
                 { "\"stderr\": [\"null:\", \"redis://u:secret@host?key=k\"]", "not 'redis:'" },
                 { "\"stdin\": \"https://host/x\"", "stdin: " } };
    static const struct mandor_callbacks end_only = { .on_ended = on_ended };
    struct seen seen;
    struct mandor_err err;
    char job[200];

    open_context(&seen);
    for (size_t i = 0; i < sizeof jobs / sizeof jobs[0]; i++) {
        (void)snprintf(job, sizeof job, "{\"exec\": [\"true\"], %s}", jobs[i].keys);
        ck_assert_int_eq(mandor_spawn(seen.mandor, job, &end_only, &seen, NULL, &err), -EINVAL);
        ck_assert_msg(strstr(err.msg, jobs[i].word) != NULL, "%s", err.msg);
        ck_assert_msg(strstr(err.msg, "secret") == NULL, "%s", err.msg);
    }
    ck_assert_int_eq(mandor_spawn(seen.mandor,
                                  "{\"exec\": [\"true\"], \"stdout\": [\"null:\", \"auto:\"]}",
                                  &end_only, &seen, NULL, &err),
                     0);
    finish(&seen);
}

UNIT_MAIN("libmandor")
