/* cmd_work.c - `mandor work`: settings, liveness lock, guard, then worker_run(). */
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>

#include "base/log.h"
#include "broker/broker.h"
#include "child/guard.h"
#include "cli/cli.h"
#include "cli/client.h"
#include "cli/out.h"
#include "config/config.h"
#include "python/store.h"
#include "worker/worker.h"

#define CONCURRENCY_MAX 100000 /* as in params.def */

/* "<host>-<pid>-<random>": a file name, unique over machines and time. */
static int make_name(char *name, size_t size, struct mandor_err *err)
{
    char host[32] = "host";
    uint32_t random;

    if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random)
        return err_set(err, -errno, FAULT_HOST, "get random bytes");
    (void)gethostname(host, sizeof host - 1);
    for (char *p = host; *p != '\0'; p++)
        if (!((*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9') ||
              *p == '-'))
            *p = '-';
    (void)snprintf(name, size, "%s-%d-%08" PRIx32, host, (int)getpid(), random);
    return 0;
}

/* The lock lives as long as worker or guard do: its descriptor is never closed, and shared with the guard by fork(2). */
static int take_lock(const char *data_dir, const char *name, char *path, size_t size,
                     struct mandor_err *err)
{
    (void)snprintf(path, size, "%s/run/%s.lock", data_dir, name);
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return err_set(err, -errno, FAULT_HOST, "create the worker's lock '%s'", path);
    if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        int r = err_set(err, -errno, FAULT_HOST, "lock '%s'", path);
        (void)close(fd);
        return r;
    }
    return 0;
}

/* Is what the queue's jobs run neither said by its configuration nor allowed to be said by them? */
static bool runs_nothing(const struct worker_setup *setup, const struct config_queue *queue)
{
    const struct binding binding = config_binding(setup->config, queue);
    const char *url = queue->broker != NULL ? queue->broker : setup->main_url;

    return broker_is_shared(url) && !binding.allow_exec && !binding_is_bound(&binding);
}

/* Call fn with each queue that runs nothing; with NULL when no queue is configured at all. */
static void each_unbound(const struct worker_setup *setup, void (*fn)(const char *queue))
{
    const struct config *config = setup->config;
    size_t count = setup->queue_count > 0 ? setup->queue_count : config->queue_count;

    for (size_t i = 0; i < count; i++) {
        const char *name = setup->queue_count > 0 ? setup->queues[i] : config->queues[i].name;
        if (runs_nothing(setup, config_queue(config, name)))
            fn(name);
    }
    if (count == 0 && broker_is_shared(setup->main_url))
        fn(NULL);
}

#define UNBOUND                                                                                   \
    "jobs come from a shared broker: they run nothing until the configuration binds their queue " \
    "with 'command', 'pool' or 'code', or says 'allow_exec: true'"

static void log_unbound(const char *queue)
{
    log_warn("%s%.60s%s: " UNBOUND, queue != NULL ? "queue '" : "no queue is configured",
             queue != NULL ? queue : "", queue != NULL ? "'" : "");
}

static void print_unbound(const char *queue)
{
    out_line("warning: %s%.60s%s: " UNBOUND, queue != NULL ? "queue '" : "no queue is configured",
             queue != NULL ? queue : "", queue != NULL ? "'" : "");
}

/* Is everything there that the runtimes load?  A worker that runs is told when its server starts. */
static int check_wheels(const struct config *config, struct mandor_err *err)
{
    for (size_t i = 0; i < config->python.runtime_count; i++) {
        const struct python_runtime *runtime = &config->python.runtimes[i];
        struct store_wheels wheels;
        if (runtime->packages == NULL || runtime->packages[0] == NULL)
            continue;
        int r = store_wheels(config->python.store, runtime->packages, &wheels, err);
        if (r < 0)
            return err_wrap(err, r, "%s: python.runtimes.%.60s", config->path, runtime->name);
        store_wheels_done(&wheels);
    }
    return 0;
}

static void print_queue(const struct config_queue *queue, const char *name)
{
    out_line("queue: %s (weight %" PRId64 ", concurrency %.0" PRId64 "%s)", name, queue->weight,
             queue->concurrency, queue->concurrency == 0 ? "the worker's" : "");
}

static void print_pool(const struct pool_options *pool)
{
    out_line("pool: %s (%s, %" PRId64 " worker%s%s)", pool->name, pool->command[0], pool->size_max,
             pool->size_max == 1 ? "" : "s", pool->size_min < pool->size_max ? " at most" : "");
}

/* --check: what would be served, and how. */
static void print_setup(const struct worker_setup *setup)
{
    const struct config *config = setup->config;

    out_line("configuration: %s", config->path != NULL ? config->path : "none found, defaults");
    for (size_t i = 0; i < setup->broker_count; i++)
        out_line("broker: %s", setup->brokers[i].name);
    out_line("concurrency: %" PRId64,
             setup->concurrency > 0 ? setup->concurrency : config->concurrency);
    for (size_t i = 0; i < setup->queue_count; i++)
        print_queue(config_queue(config, setup->queues[i]), setup->queues[i]);
    for (size_t i = 0; setup->queue_count == 0 && i < config->queue_count; i++)
        print_queue(&config->queues[i], config->queues[i].name);
    if (setup->queue_count == 0 && config->queue_count == 0)
        out_line("queues: all that the broker has");
    each_unbound(setup, print_unbound);
    for (size_t i = 0; i < config->pool_count; i++)
        print_pool(&config->pools[i]);
    for (size_t i = 0; i < config->python.runtime_count; i++)
        out_line("python: %s (isolation %s, sandbox %s)", config->python.runtimes[i].name,
                 config->python.runtimes[i].isolation, config->python.runtimes[i].sandbox);
}

/* What does not hold only where jobs are run: who but adds them may do without pools and wheels. */
static int check_work(const struct config *config, struct mandor_err *err)
{
    int r = config->broker != NULL ? broker_check_url(config->broker, err) : 0;

    for (size_t i = 0; i < config->queue_count && r == 0; i++) {
        const struct config_queue *queue = &config->queues[i];
        const char *pool = config_binding(config, queue).pool;
        bool found = pool == NULL;
        for (size_t k = 0; k < config->pool_count && !found; k++)
            found = str_eq(config->pools[k].name, pool);
        if (!found)
            r = err_set(err, -EINVAL, FAULT_CALLER,
                        "%s: queues.%.60s.pool: there is no '%.60s' below pools", config->path,
                        queue->name, pool);
    }
    for (size_t i = 0; i < config->python.runtime_count && r == 0; i++) {
        const struct python_runtime *runtime = &config->python.runtimes[i];
        if (runtime->packages != NULL && runtime->packages[0] != NULL &&
            config->python.store == NULL)
            r = err_set(
                err, -EINVAL, FAULT_CALLER,
                "%s: python.runtimes.%.60s.packages: there is no python.store to load them from",
                config->path, runtime->name);
    }
    return r;
}

/* --queue as an array.  0 or -ENOMEM. */
static int read_queues(const struct cli *cli, struct worker_setup *setup, const char ***ret)
{
    while (cli_text_nth(cli, "queue", setup->queue_count) != NULL)
        setup->queue_count++;
    if (setup->queue_count > 0 && (*ret = calloc(setup->queue_count, sizeof **ret)) == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < setup->queue_count; i++)
        (*ret)[i] = cli_text_nth(cli, "queue", i);
    setup->queues = *ret;
    return 0;
}

/* The configuration goes with SIGHUP, what the worker keeps of it does not.  0 or -ENOMEM. */
static int find_main(const struct cli *cli, struct worker_setup *setup, char **ret)
{
    const struct config *config = setup->config;
    const char *env = getenv("MANDOR_BROKER"), *given = cli->broker;

    if (given == NULL && env != NULL && env[0] != '\0')
        given = env;
    setup->main_configured = given == NULL;
    if (given == NULL)
        given = config->broker != NULL ? config->broker : "sqlite:";
    setup->main_url = *ret = strdup(given);
    return *ret != NULL ? 0 : -ENOMEM;
}

static int add_broker(struct worker_setup *setup, struct worker_broker *brokers, const char *url,
                      struct mandor_err *err)
{
    for (size_t i = 0; i < setup->broker_count; i++)
        if (str_eq(brokers[i].url, url))
            return 0;
    int r = broker_check_url(url, err);
    if (r < 0)
        return r;
    struct worker_broker *broker = &brokers[setup->broker_count++];
    *broker = (struct worker_broker){ .url = strdup(url), .name = client_place(url) };
    return broker->url != NULL && broker->name != NULL
               ? 0
               : err_set(err, -ENOMEM, FAULT_HOST, "start worker");
}

/* The brokers of all queues that are served, each once.  ret: for free_brokers(). */
static int find_brokers(struct worker_setup *setup, struct worker_broker **ret,
                        struct mandor_err *err)
{
    const struct config *config = setup->config;
    size_t count = setup->queue_count > 0 ? setup->queue_count : config->queue_count;
    struct worker_broker *brokers = calloc(count + 2, sizeof *brokers); /* an empty one ends them */
    int r = 0;

    if (brokers == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "start worker");
    *ret = brokers;
    setup->brokers = brokers;
    if (count == 0)
        r = add_broker(setup, brokers, setup->main_url, err);
    for (size_t i = 0; i < count && r == 0; i++) {
        const char *name = setup->queue_count > 0 ? setup->queues[i] : config->queues[i].name;
        const char *own = config_queue(config, name)->broker;
        r = add_broker(setup, brokers, own != NULL ? own : setup->main_url, err);
        if (r < 0 && own != NULL)
            r = err_wrap(err, r, "queue '%s'", name);
    }
    return r;
}

static void free_brokers(struct worker_broker *brokers)
{
    for (size_t i = 0; brokers != NULL && brokers[i].url != NULL; i++) {
        free((char *)(uintptr_t)brokers[i].url);
        free((char *)(uintptr_t)brokers[i].name);
    }
    free(brokers);
}

/* Each broker's directory on this machine; the first one's is the worker's. */
static int prepare_brokers(const struct worker_setup *setup, char **ret_data_dir,
                           struct mandor_err *err)
{
    for (size_t i = 0; i < setup->broker_count; i++) {
        SCOPED_FREE char *dir = NULL;
        int r = broker_prepare(setup->brokers[i].url, &dir, err);
        if (r < 0)
            return r;
        if (i == 0)
            *ret_data_dir = STEAL(dir);
    }
    return 0;
}

static void setup_log(const struct config *config, bool progress)
{
    log_setup(str_eq(config->log_format, "json") ? LOG_JSON : LOG_LOGFMT,
              progress ? LOG_WARN : LOG_INFO);
}

/* A hidden rung for tests wins over the configuration's. */
static void set_containment(const struct config *config)
{
    if (!str_eq(config->containment, "auto"))
        (void)setenv("MANDOR_CONTAINMENT", config->containment, 0);
}

/* ---- the command ---- */

struct work {
    struct worker_setup setup;
    struct config *config; /* until worker_run() takes it */
    struct worker_broker *brokers;
    const char **queues;
    char *main_url, *data_dir;
    char name[64], lock_path[4096];
};

static void work_done(struct work *work)
{
    free_brokers(work->brokers);
    config_free(work->config);
    free(work->queues);
    free(work->main_url);
    free(work->data_dir);
}

static int read_settings(const struct cli *cli, struct work *work, struct mandor_err *err)
{
    struct worker_setup *setup = &work->setup;
    int r = config_load(cli->config_path, &work->config, err);

    if (r < 0)
        return r;
    setup->config = work->config;
    setup->drain = cli_flag(cli, "drain");
    setup->progress = isatty(STDERR_FILENO) != 0;
    if (find_main(cli, setup, &work->main_url) < 0 || read_queues(cli, setup, &work->queues) < 0)
        return err_set(err, -ENOMEM, FAULT_HOST, "start worker");
    r = find_brokers(setup, &work->brokers, err);
    return r == 0 ? check_work(work->config, err) : r;
}

static int check(struct cli *cli, const struct work *work)
{
    struct mandor_err err;

    if (check_wheels(work->config, &err) < 0) {
        (void)cli_fail(cli, &err);
        return EXIT_USAGE;
    }
    print_setup(&work->setup);
    return EXIT_OK;
}

/* The guard's fork, and what it and the worker need before that. */
static int begin(struct work *work, struct mandor_err *err)
{
    struct worker_setup *setup = &work->setup;
    int r = prepare_brokers(setup, &work->data_dir, err);

    guard_hold();
    if (r == 0)
        r = make_name(work->name, sizeof work->name, err);
    if (r == 0)
        r = take_lock(work->data_dir, work->name, work->lock_path, sizeof work->lock_path, err);
    if (r < 0)
        return r;
    setup->data_dir = work->data_dir;
    setup->name = work->name;
    setup->lock_path = work->lock_path;
    set_containment(work->config);
    r = guard_fork(&setup->guard_fd, err);
    if (r < 0)
        (void)unlink(work->lock_path);
    return r;
}

int cmd_work(struct cli *cli)
{
    struct work work = { .setup = { .guard_fd = -1, .config_path = cli->config_path } };
    struct mandor_err err;
    int code = EXIT_OK;

    work.setup.concurrency = cli_number(cli, "concurrency", 0);
    if (cli_text(cli, "concurrency") != NULL &&
        (work.setup.concurrency < 1 || work.setup.concurrency > CONCURRENCY_MAX))
        return cli_usage(cli, "option '--concurrency': '%.32s' is out of range, expected 1 to %d",
                         cli_text(cli, "concurrency"), CONCURRENCY_MAX);
    int r = read_settings(cli, &work, &err);
    if (r == 0 && cli_flag(cli, "check")) {
        code = check(cli, &work);
    } else if (r == 0 && (r = begin(&work, &err)) == 0) {
        setup_log(work.config, work.setup.progress);
        each_unbound(&work.setup, log_unbound);
        work.config = NULL;
        code = worker_run(&work.setup);
    }
    if (r < 0)
        code = cli_fail(cli, &err);
    work_done(&work);
    return code;
}
