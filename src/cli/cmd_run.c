/* cmd_run.c - `mandor run`: one command under full supervision, no queue, no record.
 *
 * Guard, containment, filter, sinks and sentinel are those of the worker; only the settling differs: an exit code and one line. */
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/errout.h"
#include "base/json.h"
#include "base/log.h"
#include "base/words.h"
#include "child/guard.h"
#include "cli/cli.h"
#include "cli/job.h"
#include "cli/run_left.h"
#include "config/config.h"
#include "exec/env.h"
#include "exec/outputs.h"
#include "os/tree.h"
#include "sink/sweeper.h"
#include "sink/url.h"

#define RUN_EXIT_NOT_FOUND      127
#define RUN_EXIT_NOT_EXECUTABLE 126
#define RUN_EXIT_OOM            137

struct run {
    uv_loop_t loop;
    struct nursery *nursery;
    struct filter_pool *filters;
    struct executor_env env;
    char **env_pass;
    struct spec *spec;
    struct config *config; /* read only where a sink needs it */
    struct outputs outputs;
    struct run_left left;
    struct sweeper *sweeper; /* ends what dead runs have left; NULL = does not run */
    struct execution *execution;
    struct verdict verdict;
    uv_signal_t signals[6];
    int stop_signal; /* the first that asked us to end; 0 = none */
    bool progress, ended;
    char name[32], scratch[512];
    char id[48]; /* what sinks on other machines know the output by: pids come again */
};

static const int watched[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGCONT };
_Static_assert(ARRAY_LEN(watched) == ARRAY_LEN(((struct run *)0)->signals), "one handle a signal");

/* ---- the result ---- */

static int spawn_exit(const struct verdict *verdict)
{
    if (verdict->stage != STAGE_LOOKUP && verdict->stage != STAGE_EXEC)
        return EXIT_HOST;
    return verdict->spawn_errno == ENOENT ? RUN_EXIT_NOT_FOUND : RUN_EXIT_NOT_EXECUTABLE;
}

static int exit_code(const struct run *run)
{
    const struct verdict *verdict = &run->verdict;

    switch (verdict->cause) {
    case CAUSE_EXIT:
        return verdict->exit_code;
    case CAUSE_SIGNAL:
        return 128 + verdict->signal;
    case CAUSE_TIMEOUT:
    case CAUSE_IDLE_TIMEOUT:
        return EXIT_TIMED_OUT;
    case CAUSE_OOM:
        return RUN_EXIT_OOM;
    case CAUSE_SPAWN:
        return spawn_exit(verdict);
    case CAUSE_CANCELLED:
        return 128 + run->stop_signal;
    default:
        return EXIT_HOST;
    }
}

/* The last line on stderr names the cause. */
static void say_cause(const struct run *run)
{
    const struct verdict *verdict = &run->verdict;
    char text[VERDICT_TEXT_SIZE];

    if (verdict->cause != CAUSE_EXIT || verdict->exit_code != 0)
        (void)fprintf(stderr, "mandor run: %s\n", verdict_text(verdict, text));
}

/* ---- the end ---- */

static void on_execution_closed(void *arg)
{
    struct run *run = arg;

    if (run->sweeper != NULL)
        sweeper_stop(run->sweeper); /* the next one goes on with it */
    outputs_close(&run->outputs);
    filter_pool_close(run->filters);
    nursery_close(run->nursery, NULL, NULL);
    run->execution = NULL;
}

static void on_outputs_ended(void *arg)
{
    struct run *run = arg;
    execution_close(run->execution, on_execution_closed, run);
}

static void on_ended(void *arg, const struct verdict *verdict)
{
    struct run *run = arg;

    run->ended = true;
    run->verdict = *verdict;
    outputs_end(&run->outputs, &run->verdict, SINK_NO_DEADLINE, on_outputs_ended, run);
}

static void on_progress(void *arg, const json_t *progress)
{
    struct run *run = arg;
    SCOPED_FREE char *text = run->progress ? json_text(progress) : NULL;

    if (text != NULL)
        (void)errout_putf("progress: %s\n", text);
}

/* ^Z: the job first, then we; the guard stops by itself and relays the SIGCONT that ends it. */
static void suspend(struct run *run, bool on)
{
    execution_suspend(run->execution, on);
    if (on)
        (void)raise(SIGSTOP);
}

/* INT, TERM, HUP end the tree; a second one kills it. */
static void on_signal(uv_signal_t *handle, int signum)
{
    struct run *run = handle->data;
    char why[64];

    if (run->execution == NULL)
        return;
    if (run->ended && signum != SIGTSTP && signum != SIGCONT) { /* only its sinks are waited for */
        outputs_stop(&run->outputs, CAUSE_CANCELLED, true);
        run->stop_signal = run->stop_signal == 0 ? signum : run->stop_signal;
    }
    if (run->ended)
        return;
    if (signum == SIGTSTP || signum == SIGCONT) {
        suspend(run, signum == SIGTSTP);
        return;
    }
    (void)snprintf(why, sizeof why, "%s", strsignal(signum));
    execution_stop(run->execution, CAUSE_CANCELLED, run->stop_signal != 0 ? 0 : -1, why);
    if (run->stop_signal == 0)
        run->stop_signal = signum;
}

static void on_guard_lost(void *arg)
{
    (void)arg;
    (void)errout_putf("mandor run: the guard process has died: everything was ended\n");
    errout_flush(1000);
    _exit(EXIT_HOST);
}

/* ---- the beginning ---- */

static int make_scratch(struct run *run, struct mandor_err *err)
{
    const char *tmp = getenv("TMPDIR");

    if (tmp == NULL || tmp[0] != '/')
        tmp = "/tmp";
    (void)snprintf(run->name, sizeof run->name, "run-%d", (int)getpid());
    (void)snprintf(run->id, sizeof run->id, "%s-%" PRIx64, run->name, (uint64_t)clock_wall_ms());
    int n = snprintf(run->scratch, sizeof run->scratch, "%s/mandor-run-XXXXXX", tmp);
    if (n < 0 || (size_t)n >= sizeof run->scratch)
        return err_set(err, -ENAMETOOLONG, FAULT_CALLER, "TMPDIR is too long");
    if (mkdtemp(run->scratch) == NULL)
        return err_set(err, -errno, FAULT_HOST, "make a scratch directory in '%s'", tmp);
    (void)chmod(run->scratch, 0711); /* a command that runs as another user passes through */
    return 0;
}

static int start_parts(struct run *run, int guard_fd, struct mandor_err *err)
{
    struct nursery_options options = {
        .name = run->name,
        .scratch_dir = run->scratch,
        .own_scratch = true,
        .adopt_orphans = true,
        .guard_fd = guard_fd,
        .on_guard_lost = on_guard_lost,
        .arg = run,
    };
    int r = nursery_new(&run->loop, &options, &run->nursery, err);

    if (r < 0)
        return r;
    if ((r = filter_pool_new(&run->loop, (size_t)128 << 20, &run->filters)) < 0 ||
        (r = env_passed(NULL, &run->env_pass)) < 0)
        return err_set(err, r, FAULT_HOST, "start");
    run->env = (struct executor_env){ .loop = &run->loop,
                                      .nursery = run->nursery,
                                      .filters = run->filters,
                                      .env_pass = run->env_pass };
    if (signal(SIGPIPE, SIG_IGN) == SIG_ERR)
        return err_set(err, -errno, FAULT_HOST, "ignore SIGPIPE");
    for (size_t i = 0; i < ARRAY_LEN(watched); i++) {
        (void)uv_signal_init(&run->loop, &run->signals[i]);
        run->signals[i].data = run;
        if ((r = uv_signal_start(&run->signals[i], on_signal, watched[i])) < 0)
            return err_set(err, r, FAULT_HOST, "watch signals");
        uv_unref((uv_handle_t *)&run->signals[i]);
    }
    guard_listen();
    return 0;
}

static bool leads_elsewhere(const struct spec_str *urls)
{
    SCOPED_FREE char *url = sink_url_elsewhere(urls->bytes);

    return url != NULL;
}

static void on_swept(void *arg, int ended, int kept)
{
    struct run *run = arg;

    run->sweeper = NULL;
}

/* Where a sink is on another machine: what a kill leaves there is ended by the next run. */
static int start_left(struct run *run, struct mandor_err *err)
{
    struct mandor_err why;

    if (!leads_elsewhere(&run->spec->stdout_sink) && !leads_elsewhere(&run->spec->stderr_sink))
        return 0;
    int r = run_left_open(&run->left, run->id, err);
    if (r == 0 && run->left.left != NULL && sweeper_wanted(run->left.left) &&
        sweeper_start(&run->loop, run->left.left, on_swept, run, &run->sweeper, &why) < 0)
        log_warn("uploads of dead runs cannot be ended: %s", why.msg);
    return r;
}

static int start_job(struct run *run, struct mandor_err *err)
{
    static const struct execution_events events = { .on_progress = on_progress,
                                                    .on_ended = on_ended };
    struct outputs_place place = {
        .id = run->id,
        .queue = run->spec->queue,
        .attempt = 1,
        .data_dir = run->scratch,
        .journal_dir = run->left.journal,
        .left_dir = run->left.left,
        .filters = run->filters,
    };
    int r = outputs_open(&run->outputs, &run->loop, run->spec, &place, err);

    if (r < 0)
        return r;
    struct execution_request request = {
        .env = &run->env,
        .spec = run->spec,
        .id = run->name,
        .queue = run->spec->queue,
        .attempt = 1,
        .out = run->outputs.out.sink,
        .err = run->outputs.err.sink,
        .inherit_stdin = isatty(STDIN_FILENO) == 0,
    };
    r = executor_start(&request, &events, run, &run->execution, err);
    if (r == 0)
        outputs_attach(&run->outputs, run->execution);
    return r;
}

/* In the worker half: everything up to the exit code. */
static int supervise(struct cli *cli, struct run *run, int guard_fd)
{
    struct mandor_err err;

    if (make_scratch(run, &err) < 0)
        return cli_fail(cli, &err);
    int r = uv_loop_init(&run->loop);
    if (r < 0)
        (void)err_set(&err, r, FAULT_HOST, "start");
    if (r < 0 || start_parts(run, guard_fd, &err) < 0 || start_left(run, &err) < 0 ||
        start_job(run, &err) < 0) {
        (void)cli_fail(cli, &err);
        run_left_close(&run->left);
        (void)tree_remove(run->scratch);
        _exit(EXIT_HOST); /* nothing runs; the guard sees to the rest */
    }
    (void)errout_start();
    (void)uv_run(&run->loop, UV_RUN_DEFAULT);
    (void)rmdir(run->scratch); /* the nursery has removed its part; a spilled auto: stays */
    run_left_close(&run->left);
    /* Nothing is there any more that a signal could leave behind. */
    for (size_t i = 0; i < ARRAY_LEN(watched); i++)
        uv_close((uv_handle_t *)&run->signals[i], NULL);
    (void)uv_run(&run->loop, UV_RUN_DEFAULT);
    errout_stop(INT_MAX); /* all is over: now who reads may take its time */
    (void)uv_loop_close(&run->loop);
    words_free(run->env_pass);
    say_cause(run);
    return exit_code(run);
}

static int make_spec(struct cli *cli, struct run *run, struct mandor_err *err)
{
    SCOPED_JSON *job = json_incref(cli->job);
    int r = job_set_exec(job, cli->args, cli->arg_count);

    if (r == 0)
        r = job_default_cwd(job, err);
    if (r == 0 && json_object_get(job, "stdout") == NULL)
        r = json_object_set_new(job, "stdout", json_string("inherit:")) < 0 ? -ENOMEM : 0;
    if (r == 0 && json_object_get(job, "stderr") == NULL)
        r = json_object_set_new(job, "stderr", json_string("inherit:")) < 0 ? -ENOMEM : 0;
    if (r == 0)
        r = spec_from_json(job, NULL, &run->spec, err);
    return r < 0 ? r : job_check_run(run->spec, err);
}

/* A broken configuration does not stand in the way of a command that needs nothing of it. */
static int load_settings(struct cli *cli, struct run *run, struct mandor_err *err)
{
    const struct spec *spec = run->spec;

    if (!leads_elsewhere(&spec->stdin_src) && !leads_elsewhere(&spec->stdout_sink) &&
        !leads_elsewhere(&spec->stderr_sink))
        return 0;
    int r = config_load(cli->config_path, &run->config, err);
    if (r == 0)
        sink_settings_set(&run->config->sinks);
    return r;
}

int cmd_run(struct cli *cli)
{
    static struct run run = { .left.lock = -1 }; /* one a process */
    struct mandor_err err;
    int guard_fd = -1;

    run.progress = cli_flag(cli, "progress");
    log_setup(LOG_LOGFMT, LOG_WARN);
    if (make_spec(cli, &run, &err) < 0 || load_settings(cli, &run, &err) < 0)
        return cli_fail(cli, &err);
    if (guard_fork(&guard_fd, &err) < 0)
        return cli_fail(cli, &err);
    int code = supervise(cli, &run, guard_fd);
    run.spec = spec_free(run.spec);
    sink_settings_set(NULL);
    run.config = config_free(run.config);
    return code;
}
