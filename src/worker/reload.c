/* reload.c - SIGHUP: the configuration is read again on the pool, and takes effect on the loop. */
#include "base/log.h"
#include "loop/work.h"
#include "worker/scheduler.h"
#include "worker/worker.h"

struct reload {
    struct work work;
    struct worker *worker;
    struct config *config;
    int result;
    struct mandor_err err;
    bool again; /* asked for meanwhile */
};

static void read_config(struct work *work)
{
    struct reload *reload = CONTAINER_OF(work, struct reload, work);

    reload->result = config_load(reload->worker->setup.config_path, &reload->config, &reload->err);
}

static void use_config(struct worker *worker, struct config *config)
{
    config_free(worker->config);
    worker->config = config;
    sink_settings_set(&config->sinks);
    if (pools_configure(worker->pools, config->pools, config->pool_count) < 0)
        log_error("out of memory: not all pools are as the configuration says; send SIGHUP again");
    if (pythons_configure(worker->pythons, &config->python) < 0)
        log_error(
            "out of memory: not all runtimes are as the configuration says; send SIGHUP again");
    sources_configure(worker);
    scheduler_configure(worker->scheduler);
    scheduler_wake(worker->scheduler, NULL);
    log_info("configuration read again%s%s", config->path != NULL ? " from " : "",
             config->path != NULL ? config->path : "");
}

/* Connections, registrations and places on disk are made at the start: a broker that is new takes one. */
static int check_brokers(const struct worker *worker, const struct config *config,
                         struct mandor_err *err)
{
    static const char sentence[] =
        "is another broker than at the start, which takes a restart of the worker";
    const struct worker_setup *setup = &worker->setup;
    size_t count = setup->queue_count > 0 ? setup->queue_count : config->queue_count;

    if (setup->main_configured &&
        !str_eq(config->broker != NULL ? config->broker : "sqlite:", setup->main_url))
        return err_set(err, -EINVAL, FAULT_CALLER, "'broker' %s", sentence);
    for (size_t i = 0; i < count; i++) {
        const char *name = setup->queue_count > 0 ? setup->queues[i] : config->queues[i].name;
        if (source_of(worker, config, name) == NULL)
            return err_set(err, -EINVAL, FAULT_CALLER, "the broker of queue '%.60s' %s", name,
                           sentence);
    }
    return 0;
}

static void config_was_read(struct work *work)
{
    struct reload *reload = CONTAINER_OF(work, struct reload, work);
    struct worker *worker = reload->worker;
    bool again = reload->again;

    if (reload->result == 0 && !worker->closing)
        reload->result = check_brokers(worker, reload->config, &reload->err);
    if (reload->result < 0)
        log_error("the configuration stays as it was: %s", reload->err.msg);
    if (reload->result < 0 || worker->closing)
        config_free(reload->config);
    else
        use_config(worker, reload->config);
    free(STEAL(worker->reload));
    if (again)
        worker_reload(worker);
    worker_check_done(worker);
}

void worker_reload(struct worker *worker)
{
    if (worker->closing)
        return;
    if (worker->reload != NULL) {
        worker->reload->again = true;
        return;
    }
    worker->reload = calloc(1, sizeof *worker->reload);
    if (worker->reload == NULL) {
        log_error("out of memory: the configuration stays as it was");
        return;
    }
    worker->reload->worker = worker;
    work_submit(&worker->loop, &worker->reload->work, WORK_UNKNOWN, read_config, config_was_read);
}
