/* bench_pool COUNT FLIGHT JOB CMD [ARG…] - jobs through executor `pool` with no queue around it.
 *
 * Opens the sinks of JOB (JSON, of pool "bench"), starts it, commits when it has ended, and closes: the life of an attempt but
 * for the broker.  FLIGHT at a time on one worker of CMD.  Prints the times of COUNT jobs in µs, from the opening of the sinks
 * to the last close, as a JSON array behind the CPU time of this process alone in µs a job.
 */
#include <signal.h>
#include <sys/prctl.h>

#include "base/log.h"
#include "bench.h"
#include "exec/executor.h"
#include "os/tree.h"
#include "pool/pool.h"
#include "sink/sink.h"

#define WARM_UP 500

struct bench {
    uv_loop_t loop;
    struct nursery *nursery;
    struct filter_pool *filters;
    struct pools *pools;
    struct executor_env env;
    struct spec *spec;
    char dir[64];
    int64_t count, started, ended;
    double *us; /* count of them */
    struct rusage before;
    int64_t before_ns;
};

struct one {
    struct bench *bench;
    struct execution *execution;
    struct sink *sinks[2];
    unsigned waits;
    int64_t start_ns;
};

static _Noreturn void refuse(const struct mandor_err *err)
{
    (void)fprintf(stderr, "bench_pool: %s\n", err->msg);
    exit(1);
}

static void begin(struct one *one);

static double cpu_us(const struct rusage *usage)
{
    return (double)(usage->ru_utime.tv_sec + usage->ru_stime.tv_sec) * 1e6 +
           (double)(usage->ru_utime.tv_usec + usage->ru_stime.tv_usec);
}

static void on_closed(void *arg)
{
    struct one *one = arg;
    struct bench *bench = one->bench;
    int64_t n = bench->ended++ - WARM_UP;

    if (n >= 0)
        bench->us[n] = (double)(now_ns() - one->start_ns) / 1000;
    if (n == -1) {
        (void)getrusage(RUSAGE_SELF, &bench->before);
        bench->before_ns = now_ns();
    }
    if (bench->started < bench->count + WARM_UP)
        begin(one);
    else if (bench->ended == bench->count + WARM_UP)
        uv_stop(&bench->loop);
}

static void on_committed(void *arg, int result, const struct mandor_err *err)
{
    struct one *one = arg;

    if (result < 0)
        refuse(err);
    if (--one->waits > 0)
        return;
    sink_close(one->sinks[0]);
    sink_close(one->sinks[1]);
    execution_close(one->execution, on_closed, one);
}

static void on_ended(void *arg, const struct verdict *verdict)
{
    struct one *one = arg;

    if (verdict->cause != CAUSE_EXIT || verdict->exit_code != 0) {
        (void)fprintf(stderr, "bench_pool: a job ended with %s: %s\n", cause_name(verdict->cause),
                      verdict->error);
        exit(1);
    }
    one->waits = 2;
    for (int i = 0; i < 2; i++)
        sink_commit(one->sinks[i], SINK_NO_DEADLINE, on_committed, one);
}

static void opened(struct one *one, int which, int result, const struct mandor_err *err)
{
    if (result < 0)
        refuse(err);
    execution_sink_ready(one->execution, one->sinks[which], 0, NULL);
}

static void on_out_opened(void *arg, int result, const struct mandor_err *err)
{
    opened(arg, 0, result, err);
}

static void on_err_opened(void *arg, int result, const struct mandor_err *err)
{
    opened(arg, 1, result, err);
}

static void begin(struct one *one)
{
    static const struct execution_events events = { .on_ended = on_ended };
    struct bench *bench = one->bench;
    struct mandor_err err = { 0 };

    bench->started++;
    one->start_ns = now_ns();
    for (int i = 0; i < 2; i++) {
        struct sink_target target = { .url = i == 0 ? bench->spec->stdout_sink.bytes
                                                    : bench->spec->stderr_sink.bytes,
                                      .job_id = "1000",
                                      .attempt = 1,
                                      .stream = i == 0 ? "stdout" : "stderr",
                                      .data_dir = bench->dir,
                                      .inherit_fd = -1 };
        if (sink_open(&bench->loop, &target, i == 0 ? on_out_opened : on_err_opened, one,
                      &one->sinks[i], &err) < 0)
            refuse(&err);
    }
    struct execution_request request = { .env = &bench->env,
                                         .spec = bench->spec,
                                         .id = "1000",
                                         .queue = "default",
                                         .attempt = 1,
                                         .out = one->sinks[0],
                                         .err = one->sinks[1] };
    if (executor_start(&request, &events, one, &one->execution, &err) < 0)
        refuse(&err);
}

static void open_parts(struct bench *bench, char **command)
{
    static char *const nothing[] = { NULL };
    struct mandor_err err = { 0 };
    struct nursery_options options = {
        .name = "bench", .scratch_dir = bench->dir, .adopt_orphans = true, .guard_fd = -1
    };
    struct pool_options pool = { .name = (char[]){ "bench" },
                                 .command = command,
                                 .size_min = 1,
                                 .size_max = 1,
                                 .concurrency = 1,
                                 .hello_timeout_ms = 10000,
                                 .ping_interval_ms = 10000,
                                 .kill_after_ms = 1000,
                                 .contamination = (char[]){ "report" } };

    if (nursery_new(&bench->loop, &options, &bench->nursery, &err) < 0)
        refuse(&err);
    if (filter_pool_new(&bench->loop, (size_t)128 << 20, &bench->filters) < 0 ||
        pools_new(&bench->loop, bench->nursery, nothing, &bench->pools) < 0 ||
        pools_configure(bench->pools, &pool, 1) < 0)
        give_up("the pool");
    bench->env = (struct executor_env){ .loop = &bench->loop,
                                        .nursery = bench->nursery,
                                        .filters = bench->filters,
                                        .pools = bench->pools,
                                        .env_pass = nothing };
}

static void on_pools_closed(void *arg)
{
    struct bench *bench = arg;

    filter_pool_close(bench->filters);
    nursery_close(bench->nursery, NULL, NULL);
}

static void print(const struct bench *bench)
{
    struct rusage after;

    (void)getrusage(RUSAGE_SELF, &after);
    printf("{\"seconds\": %.6f, \"cpu_us\": %.3f, \"us\": [", seconds_since(bench->before_ns),
           (cpu_us(&after) - cpu_us(&bench->before)) / (double)bench->count);
    for (int64_t i = 0; i < bench->count; i++)
        printf("%s%.2f", i > 0 ? ", " : "", bench->us[i]);
    printf("]}\n");
}

int main(int argc, char **argv)
{
    struct bench bench = { 0 };
    struct mandor_err err = { 0 };

    if (argc < 5) {
        (void)fprintf(stderr, "usage: bench_pool COUNT FLIGHT JOB CMD [ARG…]\n");
        return 2;
    }
    int64_t flight = number(argv[2]);
    bench.count = number(argv[1]);
    bench.us = calloc((size_t)bench.count, sizeof *bench.us);
    struct one *ones = calloc((size_t)flight, sizeof *ones);
    json_t *job = json_loads(argv[3], 0, NULL);
    (void)snprintf(bench.dir, sizeof bench.dir, "/tmp/bench-pool-%d", (int)getpid());
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1);
    (void)signal(SIGPIPE, SIG_IGN);
    if (bench.us == NULL || ones == NULL || uv_loop_init(&bench.loop) != 0)
        give_up("memory");
    if (spec_from_json(job, NULL, &bench.spec, &err) < 0)
        refuse(&err);
    open_parts(&bench, argv + 4);

    for (int64_t i = 0; i < flight; i++) {
        ones[i].bench = &bench;
        begin(&ones[i]);
    }
    (void)uv_run(&bench.loop, UV_RUN_DEFAULT);
    print(&bench);

    pools_close(bench.pools, on_pools_closed, &bench);
    (void)uv_run(&bench.loop, UV_RUN_DEFAULT);
    (void)uv_loop_close(&bench.loop);
    (void)tree_remove(bench.dir);
    json_decref(job);
    (void)spec_free(bench.spec);
    free(bench.us);
    free(ones);
    return 0;
}
