/* source.c - the brokers of a worker: opened, told of the worker and its queues, asked to take over what the dead have left. */
#include <stdio.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "worker/leftovers.h"
#include "worker/scheduler.h"

#define COMPLAIN_MS    60000
#define REGISTER_MS    1000  /* then the reason is told, and it is asked again */
#define DRAIN_REACH_MS 10000 /* --drain ends, with whatever has come of it */

/* ---- which one ---- */

struct source *source_of(const struct worker *worker, const struct config *config,
                         const char *queue)
{
    const char *own = config_queue(config, queue)->broker;
    const char *url = own != NULL ? own : worker->setup.main_url;

    for (size_t i = 0; i < worker->source_count; i++)
        if (str_eq(worker->sources[i].url, url))
            return &worker->sources[i];
    return NULL;
}

struct source *source_of_queue(struct worker *worker, const char *queue)
{
    return source_of(worker, worker->config, queue);
}

/* ---- recovery ---- */

static void on_recovered(struct broker_req *req)
{
    struct source *source = req->data;
    struct worker *worker = source->worker;

    source->recovering = false;
    leftovers_sweep(worker);
    if (req->status < 0)
        log_warn("recovery: %s", req->err.msg);
    else if (req->recover.due > 0 || req->recover.recovered > 0)
        scheduler_wake(worker->scheduler, source);
    worker_check_done(worker);
}

void source_recover(struct source *source)
{
    if (source->recovering || source->worker->closing || !source->registered)
        return;
    source->recovering = true;
    source->recover_req =
        (struct broker_req){ .op = BROKER_RECOVER, .done = on_recovered, .data = source };
    source->recover_req.recover.empty = worker_empty_dead;
    source->recover_req.recover.arg = source->worker;
    broker_submit(source->broker, &source->recover_req);
}

/* ---- open ---- */

static void on_wake(void *arg)
{
    struct source *source = arg;

    renew_ask(source); /* it tells of cancels */
    scheduler_wake(source->worker->scheduler, source);
}

int sources_open(struct worker *worker, struct mandor_err *err)
{
    const struct worker_setup *setup = &worker->setup;

    worker->sources = calloc(setup->broker_count, sizeof *worker->sources);
    if (worker->sources == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "start worker");
    for (size_t i = 0; i < setup->broker_count; i++) {
        struct source *source = &worker->sources[i];
        *source = (struct source){ .worker = worker,
                                   .url = setup->brokers[i].url,
                                   .name = setup->brokers[i].name,
                                   .shared = broker_is_shared(setup->brokers[i].url),
                                   .renewed_boot_ms = clock_boot_ms() };
        int r = hash_new(&source->by_id);
        if (r < 0)
            return err_set(err, r, FAULT_HOST, "start worker");
        r = broker_open(source->url, &worker->loop, true, &source->broker, err);
        if (r < 0)
            return r;
        source->data_dir = broker_data_dir(source->broker);
        worker->source_count++;
    }
    return 0;
}

int sources_listen(struct worker *worker, struct mandor_err *err)
{
    int r = 0;

    for (size_t i = 0; i < worker->source_count && r == 0; i++)
        r = broker_listen(worker->sources[i].broker, worker->setup.name, on_wake,
                          &worker->sources[i], err);
    return r;
}

/* ---- the worker announces itself ---- */

/* The queues of source that this worker serves, as JSON; [] = all. */
static char *queues_text(struct worker *worker, const struct source *source)
{
    SCOPED_JSON *names = json_array();
    const struct worker_setup *setup = &worker->setup;
    size_t count = setup->queue_count > 0 ? setup->queue_count : worker->config->queue_count;

    for (size_t i = 0; i < count; i++) {
        const char *name =
            setup->queue_count > 0 ? setup->queues[i] : worker->config->queues[i].name;
        if (source_of_queue(worker, name) == source)
            (void)json_array_append_new(names, json_string(name));
    }
    return json_text(names);
}

/* Fill req; texts: to be freed when it is done.  0 or -ENOMEM. */
static int make_registration(struct source *source, struct broker_req *req, char *texts[2])
{
    struct worker *worker = source->worker;

    texts[0] = queues_text(worker, source);
    texts[1] = worker_base_text(worker);
    if (texts[0] == NULL || texts[1] == NULL)
        return -ENOMEM;
    *req = (struct broker_req){ .op = BROKER_REGISTER, .data = source };
    req->reg.worker = worker->setup.name;
    req->reg.lock_path = worker->setup.lock_path;
    req->reg.containment = texts[1];
    req->reg.queues = texts[0];
    req->reg.lease_ms = worker->config->lease_ms;
    return 0;
}

static int register_now(struct source *source, struct mandor_err *err)
{
    struct broker_req req;
    char *texts[2];
    int r = make_registration(source, &req, texts);

    req.reg.wait_ms = REGISTER_MS;
    if (r < 0)
        (void)err_set(err, r, FAULT_HOST, "register worker");
    else if ((r = broker_wait(source->broker, &req)) < 0)
        *err = req.err;
    else
        source->registered = true;
    free(texts[0]);
    free(texts[1]);
    return r;
}

static void free_registration(struct source *source)
{
    free(STEAL(source->register_texts[0]));
    free(STEAL(source->register_texts[1]));
}

/* Once, and then when there is another reason, or after a while. */
static void say_waiting(struct source *source, const char *why)
{
    int64_t now_ms = clock_mono_ms();

    if (strncmp(why, source->said, sizeof source->said - 1) == 0 &&
        now_ms < source->said_ms + COMPLAIN_MS)
        return;
    (void)snprintf(source->said, sizeof source->said, "%s", why);
    source->said_ms = now_ms;
    log_warn("waiting for broker '%s': %s", source->name, why);
}

static void on_registered(struct broker_req *req)
{
    struct source *source = req->data;

    source->registering = false;
    free_registration(source);
    if (req->status < 0 && source->registered) {
        source->changed = true; /* the next tick tries again */
        log_warn("tell broker '%s' of the queues that are served: %s", source->name, req->err.msg);
    } else if (req->status < 0) {
        say_waiting(source, req->err.msg);
    } else if (!source->registered) {
        source->registered = true;
        log_info("broker '%s' answers: its queues are served", source->name);
        source_recover(source);
    }
    if (req->status == 0)
        scheduler_wake(source->worker->scheduler, source);
    worker_check_done(source->worker);
}

void source_register(struct source *source)
{
    const struct worker *worker = source->worker;

    if ((source->registered && !source->changed) || source->registering || worker->stopping ||
        worker->closing)
        return;
    if (make_registration(source, &source->register_req, source->register_texts) < 0) {
        free_registration(source);
        return; /* the next tick tries again */
    }
    source->changed = false;
    if (str_eq(source->register_texts[0], "[]") && worker->config->queue_count > 0) {
        free_registration(source); /* none of the queues is its any more: [] would mean all */
        return;
    }
    source->register_req.reg.wait_ms = source->registered ? 0 : REGISTER_MS;
    source->registering = true;
    source->register_req.done = on_registered;
    broker_submit(source->broker, &source->register_req);
}

void sources_configure(struct worker *worker)
{
    for (size_t i = 0; i < worker->source_count; i++) {
        worker->sources[i].changed = true;
        source_register(&worker->sources[i]);
    }
}

/* Does waiting help?  What is wrong with the request, the password or the server's kind stays so. */
static bool passes(const struct source *source, const struct mandor_err *err)
{
    return source->shared && err->fault == MANDOR_FAULT_REMOTE && err->code != -EACCES &&
           err->code != -EPROTO && err->code != -EINVAL && err->code != -ENOTSUP;
}

static void on_pause_over(uv_timer_t *timer)
{
    (void)timer; /* the loop has turned */
}

/* What is first asked of a broker that everything depends on.  Somebody who looks at the log must see what it waits for. */
static int reach(struct source *source, struct mandor_err *err)
{
    struct worker *worker = source->worker;
    int64_t begin_ms = clock_mono_ms();

    for (;;) {
        int64_t until_ms = clock_mono_ms() + REGISTER_MS;
        int r = register_now(source, err);
        if (r == 0 && source->said_ms > 0)
            log_info("broker '%s' answers", source->name);
        if (r == 0 || worker->stopping || !passes(source, err) ||
            (worker->setup.drain && clock_mono_ms() - begin_ms >= DRAIN_REACH_MS))
            return r;
        say_waiting(source, err->msg);
        for (int64_t left_ms; !worker->stopping && (left_ms = until_ms - clock_mono_ms()) > 0;) {
            (void)uv_timer_start(&worker->tick, on_pause_over, (uint64_t)left_ms, 0);
            (void)uv_run(&worker->loop, UV_RUN_ONCE);
        }
    }
}

/* The first broker is waited for, and with --drain all of them, for a while: else it would not be known what "done" means. */
int sources_register(struct worker *worker, struct mandor_err *err)
{
    int r = 0;

    for (size_t i = 0; i < worker->source_count && r == 0; i++)
        if (i == 0 || worker->setup.drain)
            r = reach(&worker->sources[i], err);
        else
            source_register(&worker->sources[i]);
    worker->registered = r == 0;
    return r;
}
