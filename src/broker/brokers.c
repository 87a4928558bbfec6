/* brokers.c - the registry of brokers and what all of them share; contract in broker.h and broker_ops.h. */
#include "base/clock.h"
#include "base/hide.h"
#include "base/metrics.h"
#include "base/module.h"
#include "broker/broker_ops.h"

#define BROKER_MAGIC 0x62726f6bu

struct broker {
    uint32_t magic;
    const struct broker_ops *ops;
    uv_loop_t *loop;
    bool worker, closing;
    char *data_dir;
    void (*on_wake)(void *arg);
    void *wake_arg;
    void (*on_closed)(void *arg);
    void *closed_arg;
    max_align_t state[]; /* ops->state_size bytes */
};

static const struct broker_ops *const brokers[] = { &broker_sqlite };

#define KNOWN "sqlite:PATH, streams[+tls]://HOST[:PORT][/DB] or bullmq[+tls]://HOST[:PORT][/DB]"

static const struct broker_ops *listed(const char *url)
{
    for (size_t i = 0; i < ARRAY_LEN(brokers); i++) {
        size_t len = strlen(brokers[i]->scheme);
        if (strncmp(url, brokers[i]->scheme, len) == 0 && url[len] == ':')
            return brokers[i];
    }
    return NULL;
}

/* The back end of url; NULL with *err when there is none or its module cannot be had. */
static const struct broker_ops *find_ops(const char *url, struct mandor_err *err)
{
    const struct broker_ops *ops = listed(url);

    if (ops == NULL && module_has("broker", url))
        return module_part("broker", url, err);
    if (ops == NULL) {
        SCOPED_FREE char *shown = hide_password(url);
        (void)err_set(err, -EINVAL, FAULT_CALLER, "broker '%s' is not known, expected " KNOWN,
                      shown != NULL ? shown : "?");
    }
    return ops;
}

static void broker_free(struct broker *broker)
{
    free(broker->data_dir);
    OBJ_FINI(broker);
    free(broker);
}

int broker_check_url(const char *url, struct mandor_err *err)
{
    struct mandor_err unused;
    const struct broker_ops *ops = find_ops(url, err != NULL ? err : (err = &unused));

    if (ops == NULL)
        return err->code;
    return ops->check == NULL ? 0 : ops->check(url, err);
}

bool broker_is_shared(const char *url)
{
    return listed(url) == NULL;
}

int broker_prepare(const char *url, char **ret_data_dir, struct mandor_err *err)
{
    struct mandor_err unused;
    const struct broker_ops *ops = find_ops(url, err != NULL ? err : (err = &unused));

    return ops == NULL ? err->code : ops->prepare(url, ret_data_dir, err);
}

int broker_open(const char *url, uv_loop_t *loop, bool worker, struct broker **ret,
                struct mandor_err *err)
{
    struct mandor_err unused;
    const struct broker_ops *ops = find_ops(url, err != NULL ? err : (err = &unused));
    if (ops == NULL)
        return err->code;

    struct broker *broker = calloc(1, sizeof *broker + ops->state_size);
    if (broker == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "open broker");
    broker->magic = BROKER_MAGIC;
    broker->ops = ops;
    broker->loop = loop;
    broker->worker = worker;

    int r = ops->open(broker, url, err);
    if (r < 0) {
        broker_free(broker);
        return r;
    }
    *ret = broker;
    return 0;
}

void broker_close(struct broker *broker, void (*on_closed)(void *arg), void *arg)
{
    OBJ_CHECK(broker, BROKER_MAGIC);
    BUG_ON(broker->closing);
    broker->closing = true;
    broker->on_wake = NULL;
    broker->on_closed = on_closed;
    broker->closed_arg = arg;
    broker->ops->close(broker);
}

void broker_closed(struct broker *broker)
{
    OBJ_CHECK(broker, BROKER_MAGIC);
    void (*on_closed)(void *arg) = broker->on_closed;
    void *arg = broker->closed_arg;

    broker_free(broker);
    if (on_closed != NULL)
        on_closed(arg);
}

int broker_check_spec(const struct broker *broker, const struct spec *spec, struct mandor_err *err)
{
    OBJ_CHECK(broker, BROKER_MAGIC);
    if (broker->ops->check_spec != NULL)
        return broker->ops->check_spec(spec, err);
    if (spec->id != NULL)
        return err_set(err, -EINVAL, FAULT_CALLER,
                       "'id': only queues of BullMQ take one; 'unique' keeps a job from being "
                       "added twice");
    return !spec->lifo
               ? 0
               : err_set(err, -EINVAL, FAULT_CALLER, "'lifo': only queues of BullMQ know it");
}

void broker_submit(struct broker *broker, struct broker_req *req)
{
    OBJ_CHECK(broker, BROKER_MAGIC);
    BUG_ON(broker->closing);
    BUG_ON(req->op >= BROKER_OPS || req->done == NULL);
    req->status = 0;
    err_clear(&req->err);
    list_init(&req->node);
    req->submitted_ns = clock_mono_ns();
    broker->ops->submit(broker, req);
}

static void observe(const struct broker_req *req)
{
    int64_t us = (clock_mono_ns() - req->submitted_ns) / 1000;

    if (req->op == BROKER_SETTLE)
        metric_observe(METRIC_settle_us, us);
    else if (req->op == BROKER_LEASE)
        metric_observe(METRIC_lease_us, us);
    if (req->status < 0 && req->err.fault != MANDOR_FAULT_CALLER)
        metric_add(METRIC_broker_errors, 1);
}

void broker_answer(struct broker *broker, struct broker_req *req)
{
    OBJ_CHECK(broker, BROKER_MAGIC);
    observe(req);
    req->done(req);
}

static void on_waited(struct broker_req *req)
{
    *(bool *)req->data = true;
}

int broker_wait(struct broker *broker, struct broker_req *req)
{
    void (*done)(struct broker_req *) = req->done;
    void *data = req->data;
    bool over = false;

    req->done = on_waited;
    req->data = &over;
    broker_submit(broker, req);
    while (!over)
        (void)uv_run(broker->loop, UV_RUN_ONCE);
    req->done = done;
    req->data = data;
    return req->status;
}

int broker_listen(struct broker *broker, const char *name, void (*on_wake)(void *arg), void *arg,
                  struct mandor_err *err)
{
    OBJ_CHECK(broker, BROKER_MAGIC);
    broker->on_wake = on_wake;
    broker->wake_arg = arg;
    return broker->ops->listen(broker, name, err);
}

void broker_woken(struct broker *broker)
{
    OBJ_CHECK(broker, BROKER_MAGIC);
    if (broker->on_wake != NULL)
        broker->on_wake(broker->wake_arg);
}

bool broker_takes_notes(const struct broker *broker)
{
    OBJ_CHECK(broker, BROKER_MAGIC);
    return broker->ops->takes_notes;
}

bool broker_starts_leases(const struct broker *broker)
{
    OBJ_CHECK(broker, BROKER_MAGIC);
    return broker->ops->starts_leases;
}

bool broker_leases_overlap(const struct broker *broker)
{
    OBJ_CHECK(broker, BROKER_MAGIC);
    return broker->ops->leases_overlap;
}

bool broker_has_bare_data(const struct broker *broker)
{
    OBJ_CHECK(broker, BROKER_MAGIC);
    return broker->ops->bare_data;
}

const char *broker_data_dir(const struct broker *broker)
{
    return broker->data_dir;
}

void broker_set_data_dir(struct broker *broker, char *adopt_path)
{
    free(broker->data_dir);
    broker->data_dir = adopt_path;
}

void *broker_state(struct broker *broker)
{
    return broker->state;
}

uv_loop_t *broker_loop(struct broker *broker)
{
    return broker->loop;
}

bool broker_is_worker(const struct broker *broker)
{
    return broker->worker;
}

void lease_done(struct lease *lease)
{
    free(lease->id);
    free(lease->queue);
    free(lease->spec_text);
    free(lease->own_id);
    free(lease->name);
    *lease = (struct lease){ 0 };
}
