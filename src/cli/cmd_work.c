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
#include "config/config.h"
#include "worker/worker.h"

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

/* The lock lives as long as worker or guard do: its open file description is shared with the guard by fork(2). */
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
    return fd;
}

static int check(const struct config *config, const char *url)
{
    (void)printf("configuration: %s\n",
                 config->path != NULL ? config->path : "none found, defaults");
    (void)printf("broker: %s\nconcurrency: %" PRId64 "\n", url, config->concurrency);
    for (size_t i = 0; i < config->queue_count; i++)
        (void)printf("queue: %s (weight %" PRId64 ", concurrency %" PRId64 ")\n",
                     config->queues[i].name, config->queues[i].weight,
                     config->queues[i].concurrency);
    if (config->queue_count == 0)
        (void)printf("queues: all that the broker has\n");
    return EXIT_OK;
}

static const char *broker_url(const struct cli *cli, const struct config *config)
{
    const char *env = getenv("MANDOR_BROKER");

    if (cli->broker != NULL)
        return cli->broker;
    if (env != NULL && env[0] != '\0')
        return env;
    return config->broker != NULL ? config->broker : "sqlite:";
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

int cmd_work(struct cli *cli)
{
    struct mandor_err err;
    struct config *config = NULL;
    SCOPED_FREE char *data_dir = NULL;
    char name[64], lock_path[4096];
    struct worker_setup setup = { .guard_fd = -1, .config_path = cli->config_path };

    if (config_load(cli->config_path, &config, &err) < 0)
        return cli_fail(cli, &err);
    setup.config = config;
    setup.broker_url = broker_url(cli, config);
    if (cli_flag(cli, "check")) {
        int code = check(config, setup.broker_url);
        config_free(config);
        return code;
    }
    setup.drain = cli_flag(cli, "drain");
    setup.concurrency = cli_number(cli, "concurrency", 0);
    setup.progress = isatty(STDERR_FILENO) != 0;

    const char **queues = NULL;
    while (cli_text_nth(cli, "queue", setup.queue_count) != NULL)
        setup.queue_count++;
    if (setup.queue_count > 0 && (queues = calloc(setup.queue_count, sizeof *queues)) == NULL)
        return cli_fail(cli, (err_set(&err, -ENOMEM, FAULT_HOST, "start worker"), &err));
    for (size_t i = 0; i < setup.queue_count; i++)
        queues[i] = cli_text_nth(cli, "queue", i);
    setup.queues = queues;

    if (broker_prepare(setup.broker_url, &data_dir, &err) < 0 ||
        make_name(name, sizeof name, &err) < 0 ||
        take_lock(data_dir, name, lock_path, sizeof lock_path, &err) < 0)
        return cli_fail(cli, &err);
    setup.data_dir = data_dir;
    setup.name = name;
    setup.lock_path = lock_path;
    set_containment(config);
    if (guard_fork(&setup.guard_fd, &err) < 0)
        return cli_fail(cli, &err);
    setup_log(config, setup.progress);
    int code = worker_run(&setup);
    free(queues);
    return code;
}
