/* cmd_verify.c - `mandor verify isolation`: what one Python job finds of another, level by level.
 *
 * At each level job A leaves behind what a job can leave behind, then job B looks (zygote/python/verify_*.py); twice, since at `scope`
 * the things of one part end the process for good, and nothing would be seen of the other.  Server, copies,
 * executor and sandbox are those of a worker; only the settling differs: a table.
 */
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/words.h"
#include "child/guard.h"
#include "cli/cli.h"
#include "cli/out.h"
#include "config/config.h"
#include "exec/env.h"
#include "exec/outputs.h"
#include "os/tree.h"
#include "python/locate.h"
#include "python/python.h"

#define SCRIPT_MAX ((size_t)64 << 10)
#define TIMEOUT    "120s"
#define PARTS      2 /* of verify_plant.py */

/* Level by level; what `scope` shows is known and no failure. */
static const struct level {
    const char *name;
    bool must_be_clean;
} levels[] = { { "fork", true }, { "scope", false }, { "instance", true } };

struct verify {
    struct cli *cli;
    uv_loop_t loop;
    struct nursery *nursery;
    struct filter_pool *filters;
    struct pythons *pythons;
    struct executor_env env;
    char **env_pass;
    struct config *config;
    struct buf scripts[2]; /* plant, look */
    size_t level, job;     /* A and B of one part, then of the next */
    json_t *seen;          /* {level: {what: bool}} */
    struct spec *spec;
    struct outputs outputs;
    struct execution *execution;
    struct verdict verdict;
    bool failed;
    char name[32], scratch[512];
};

static void next(struct verify *verify);

/* ---- one job ---- */

static void finish(struct verify *verify);

static void fail(struct verify *verify, const char *why)
{
    cli_warn(verify->cli, "isolation '%s': %s", levels[verify->level].name, why);
    verify->failed = true;
    finish(verify);
}

static bool is_looking(const struct verify *verify)
{
    return verify->job % ARRAY_LEN(verify->scripts) == 1;
}

/* What B has seen, in any part; words of A in B's output are the last row. */
static int note_seen(struct verify *verify, const json_t *result, bool output)
{
    SCOPED_JSON *now = json_deep_copy(result);
    json_t *seen = json_object_get(verify->seen, levels[verify->level].name);
    const char *what;
    json_t *leaked;

    if (json_object_set_new(now, "unflushed output", json_boolean(output)) < 0)
        return -ENOMEM;
    if (seen == NULL)
        return json_object_set(verify->seen, levels[verify->level].name, now) < 0 ? -ENOMEM : 0;
    json_object_foreach(now, what, leaked)
        if (json_is_true(leaked) && json_object_set(seen, what, leaked) < 0)
            return -ENOMEM;
    return 0;
}

static void on_closed(void *arg)
{
    struct verify *verify = arg;
    char text[VERDICT_TEXT_SIZE];

    outputs_close(&verify->outputs);
    verify->spec = spec_free(verify->spec);
    verify->execution = NULL;
    if (verify->verdict.cause != CAUSE_EXIT || verify->verdict.exit_code != 0) {
        fail(verify, verdict_text(&verify->verdict, text));
        return;
    }
    if (++verify->job == PARTS * ARRAY_LEN(verify->scripts)) {
        verify->job = 0;
        verify->level++;
    }
    next(verify);
}

static void on_outputs_ended(void *arg)
{
    struct verify *verify = arg;
    execution_close(verify->execution, on_closed, verify);
}

static void on_ended(void *arg, const struct verdict *verdict)
{
    struct verify *verify = arg;
    struct record_stream out;

    verify->verdict = *verdict;
    outputs_record(&verify->outputs, false, &out);
    const json_t *result = execution_result(verify->execution);
    if (is_looking(verify) && json_is_object(result) &&
        note_seen(verify, result, out.bytes > 0) < 0)
        verify->failed = true;
    outputs_end(&verify->outputs, &verify->verdict, SINK_NO_DEADLINE, on_outputs_ended, verify);
}

static int make_spec(struct verify *verify, struct mandor_err *err)
{
    SCOPED_JSON *job = json_pack("{s:{s:s, s:i, s:s}, s:s, s:s, s:s}", "python", "code",
                                 verify->scripts[verify->job % ARRAY_LEN(verify->scripts)].data,
                                 "params", (int)(verify->job / ARRAY_LEN(verify->scripts)),
                                 "runtime", levels[verify->level].name, "stdout", "null:", "stderr",
                                 "null:", "timeout", TIMEOUT);

    return job != NULL ? spec_from_json(job, NULL, &verify->spec, err)
                       : err_set(err, -ENOMEM, FAULT_HOST, "make a job");
}

static int start_job(struct verify *verify, struct mandor_err *err)
{
    static const struct execution_events events = { .on_ended = on_ended };
    struct outputs_place place = { .id = verify->name, .queue = "verify", .attempt = 1 };
    int r = make_spec(verify, err);

    if (r == 0)
        r = outputs_open(&verify->outputs, &verify->loop, verify->spec, &place, err);
    if (r < 0)
        return r;
    struct execution_request request = {
        .env = &verify->env,
        .spec = verify->spec,
        .id = verify->name,
        .queue = "verify",
        .attempt = 1,
        .out = verify->outputs.out.sink,
        .err = verify->outputs.err.sink,
    };
    r = executor_start(&request, &events, verify, &verify->execution, err);
    if (r == 0)
        outputs_attach(&verify->outputs, verify->execution);
    return r;
}

static void on_pythons_closed(void *arg)
{
    struct verify *verify = arg;

    filter_pool_close(verify->filters);
    nursery_close(verify->nursery, NULL, NULL);
}

static void finish(struct verify *verify)
{
    pythons_close(STEAL(verify->pythons), on_pythons_closed, verify);
}

static void next(struct verify *verify)
{
    struct mandor_err err = { 0 };

    if (verify->level == ARRAY_LEN(levels))
        finish(verify);
    else if (start_job(verify, &err) < 0)
        fail(verify, err.msg);
}

/* ---- the report ---- */

static bool is_clean(const json_t *seen)
{
    const char *what;
    json_t *leaked;

    json_object_foreach((json_t *)seen, what, leaked)
        if (json_is_true(leaked))
            return false;
    return json_object_size(seen) > 0;
}

static bool all_as_promised(const struct verify *verify)
{
    bool ok = !verify->failed;

    for (size_t i = 0; i < ARRAY_LEN(levels); i++)
        ok &= !levels[i].must_be_clean || is_clean(json_object_get(verify->seen, levels[i].name));
    return ok;
}

static void print_table(const struct verify *verify)
{
    const char *what;
    json_t *leaked;

    out_line("%-24s %-10s %-10s %s", "WHAT JOB A LEFT", "fork", "scope", "instance");
    json_object_foreach(json_object_get(verify->seen, levels[0].name), what, leaked) {
        const char *cell[ARRAY_LEN(levels)];
        for (size_t i = 0; i < ARRAY_LEN(levels); i++) {
            const json_t *seen =
                json_object_get(json_object_get(verify->seen, levels[i].name), what);
            cell[i] = seen == NULL ? "?" : json_is_true(seen) ? "seen by B" : "-";
        }
        out_line("%-24s %-10s %-10s %s", what, cell[0], cell[1], cell[2]);
    }
}

static int report(const struct verify *verify)
{
    bool ok = all_as_promised(verify);

    if (verify->cli->json) {
        SCOPED_JSON *json = json_pack("{s:b, s:O}", "ok", (int)ok, "seen", verify->seen);
        if (json == NULL || out_json_pretty(json) < 0)
            return EXIT_HOST;
    } else if (json_object_size(verify->seen) > 0) {
        print_table(verify);
        out_line("%s", ok ? "fork and instance show nothing of another job"
                          : "BROKEN: fork or instance shows something of another job");
    }
    return ok ? EXIT_OK : json_object_size(verify->seen) == 0 ? EXIT_HOST : EXIT_FAILED;
}

/* ---- the beginning ---- */

static void on_guard_lost(void *arg)
{
    (void)arg;
    _exit(EXIT_HOST);
}

/* The configuration's Node, and a runtime for each level. */
static int configure(struct verify *verify)
{
    struct python_runtime runtimes[ARRAY_LEN(levels)];
    struct python_options options = { .node = verify->config->python.node,
                                      .runtimes = runtimes,
                                      .runtime_count = ARRAY_LEN(levels) };

    for (size_t i = 0; i < ARRAY_LEN(levels); i++) {
        runtimes[i] = verify->config->python.runtimes[0]; /* borrowed: the copy is pythons' own */
        runtimes[i].name = (char *)(uintptr_t)levels[i].name;
        runtimes[i].isolation = (char *)(uintptr_t)levels[i].name;
        runtimes[i].packages = runtimes[i].preload = NULL;
        runtimes[i].spare = 0; /* scope: B must come into the process of A */
        runtimes[i].named = false;
    }
    return pythons_configure(verify->pythons, &options);
}

static int read_scripts(struct verify *verify, struct mandor_err *err)
{
    static const char *const names[] = { "verify_plant.py", "verify_look.py" };
    SCOPED_FREE char *harness = NULL;
    int r = locate_harness(&harness, err);

    for (size_t i = 0; i < ARRAY_LEN(names) && r == 0; i++) {
        SCOPED_FREE char *path = NULL;
        if (asprintf(&path, "%s/python/%s", harness, names[i]) < 0) {
            path = NULL;
            return err_set(err, -ENOMEM, FAULT_HOST, "read the scripts");
        }
        r = file_read(path, SCRIPT_MAX, false, &verify->scripts[i]);
        if (r < 0)
            (void)err_set(err, r, FAULT_HOST, "read '%s'", path);
    }
    return r;
}

static int make_scratch(struct verify *verify, struct mandor_err *err)
{
    const char *tmp = getenv("TMPDIR");

    if (tmp == NULL || tmp[0] != '/')
        tmp = "/tmp";
    (void)snprintf(verify->name, sizeof verify->name, "verify-%d", (int)getpid());
    int n = snprintf(verify->scratch, sizeof verify->scratch, "%s/mandor-verify-XXXXXX", tmp);
    if (n < 0 || (size_t)n >= sizeof verify->scratch)
        return err_set(err, -ENAMETOOLONG, FAULT_CALLER, "TMPDIR is too long");
    return mkdtemp(verify->scratch) != NULL
               ? 0
               : err_set(err, -errno, FAULT_HOST, "make a scratch directory in '%s'", tmp);
}

static int start_parts(struct verify *verify, int guard_fd, struct mandor_err *err)
{
    struct nursery_options options = { .name = verify->name,
                                       .scratch_dir = verify->scratch,
                                       .own_scratch = true,
                                       .adopt_orphans = true,
                                       .guard_fd = guard_fd,
                                       .on_guard_lost = on_guard_lost };
    int r = nursery_new(&verify->loop, &options, &verify->nursery, err);

    if (r < 0)
        return r;
    if ((r = filter_pool_new(&verify->loop, (size_t)16 << 20, &verify->filters)) < 0 ||
        (r = env_passed(NULL, &verify->env_pass)) < 0 ||
        (r = pythons_new(&verify->loop, verify->nursery, &verify->pythons)) < 0 ||
        (r = configure(verify)) < 0)
        return err_set(err, r, FAULT_HOST, "start");
    if (signal(SIGPIPE, SIG_IGN) == SIG_ERR)
        return err_set(err, -errno, FAULT_HOST, "ignore SIGPIPE");
    guard_listen(); /* without a handler: the guard removes what is registered by now */
    verify->env = (struct executor_env){ .loop = &verify->loop,
                                         .nursery = verify->nursery,
                                         .filters = verify->filters,
                                         .pythons = verify->pythons,
                                         .env_pass = verify->env_pass };
    return 0;
}

static int supervise(struct verify *verify, int guard_fd)
{
    struct mandor_err err;

    if (make_scratch(verify, &err) < 0)
        return cli_fail(verify->cli, &err);
    int r = uv_loop_init(&verify->loop);
    if (r < 0)
        (void)err_set(&err, r, FAULT_HOST, "start");
    if (r < 0 || start_parts(verify, guard_fd, &err) < 0) {
        (void)cli_fail(verify->cli, &err);
        (void)tree_remove(verify->scratch);
        _exit(EXIT_HOST); /* nothing runs; the guard sees to the rest */
    }
    next(verify);
    (void)uv_run(&verify->loop, UV_RUN_DEFAULT);
    (void)uv_loop_close(&verify->loop);
    (void)rmdir(verify->scratch);
    words_free(verify->env_pass);
    return report(verify);
}

int cmd_verify(struct cli *cli)
{
    static struct verify verify; /* one a process */
    struct mandor_err err;
    int guard_fd = -1;

    if (!str_eq(cli->args[0], "isolation"))
        return cli_usage(cli, "unknown '%.64s', expected isolation", cli->args[0]);
    verify.cli = cli;
    verify.seen = json_object();
    log_setup(LOG_LOGFMT, LOG_WARN);
    if (config_load(cli->config_path, &verify.config, &err) < 0 || read_scripts(&verify, &err) < 0)
        return cli_fail(cli, &err);
    if (guard_fork(&guard_fd, &err) < 0)
        return cli_fail(cli, &err);
    int code = supervise(&verify, guard_fd);
    verify.config = config_free(verify.config);
    json_decref(verify.seen);
    for (size_t i = 0; i < ARRAY_LEN(verify.scripts); i++)
        buf_done(&verify.scripts[i]);
    return code;
}
