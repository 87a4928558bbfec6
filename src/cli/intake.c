/* intake.c - contract in intake.h. */
#include "cli/intake.h"

#include <poll.h>

#include "cli/job.h"

#define INTAKE_MAGIC 0x494e544bu

struct batch {
    struct intake *intake;
    struct broker_req req;
    bool busy; /* with the broker */
    size_t count, weight;
    struct spec *specs[INTAKE_BATCH];
    struct broker_added added[INTAKE_BATCH];
};

struct intake {
    uint32_t magic;
    struct client *client;
    struct intake_events events;
    void *arg;
    struct mandor_err err; /* of the first batch that failed */
    size_t filling;        /* index of the batch that takes jobs */
    struct batch batches[INTAKE_IN_FLIGHT];
};

int intake_new(struct client *client, const struct intake_events *events, void *arg,
               struct intake **ret)
{
    struct intake *intake = calloc(1, sizeof *intake);
    if (intake == NULL)
        return -ENOMEM;

    intake->magic = INTAKE_MAGIC;
    intake->client = client;
    intake->events = *events;
    intake->arg = arg;
    for (size_t i = 0; i < INTAKE_IN_FLIGHT; i++)
        intake->batches[i].intake = intake;
    *ret = intake;
    return 0;
}

static void empty_batch(struct batch *batch)
{
    for (size_t i = 0; i < batch->count; i++)
        (void)spec_free(batch->specs[i]);
    batch->count = 0;
    batch->weight = 0;
}

struct intake *intake_free(struct intake *intake)
{
    if (intake == NULL)
        return NULL;
    OBJ_CHECK(intake, INTAKE_MAGIC);
    for (size_t i = 0; i < INTAKE_IN_FLIGHT; i++) {
        BUG_ON(intake->batches[i].busy);
        empty_batch(&intake->batches[i]);
    }
    OBJ_FINI(intake);
    free(intake);
    return NULL;
}

static void on_done(struct broker_req *req)
{
    struct batch *batch = req->data;
    struct intake *intake = batch->intake;

    OBJ_CHECK(intake, INTAKE_MAGIC);
    batch->busy = false;
    if (req->status < 0 && intake->err.code == 0) {
        intake->err = req->err;
        if (intake->err.code == 0)
            (void)err_set(&intake->err, req->status, FAULT_HOST, "add jobs");
    }
    if (req->status == 0) {
        for (size_t i = 0; i < batch->count; i++)
            intake->events.on_added(batch->added[i].id, batch->added[i].existing, intake->arg);
        intake->events.on_batch(req->add.served, intake->arg);
    }
    empty_batch(batch);
}

/* The error that ended the intake, or 0. */
static int failed(const struct intake *intake, struct mandor_err *err)
{
    if (intake->err.code != 0 && err != NULL)
        *err = intake->err;
    return intake->err.code;
}

/* Send what is gathered, then wait until there is an empty batch to gather into. */
static int send_batch(struct intake *intake, struct mandor_err *err)
{
    struct batch *batch = &intake->batches[intake->filling];

    if (batch->count == 0 || failed(intake, NULL) != 0)
        return failed(intake, err);
    batch->busy = true;
    batch->req = (struct broker_req){ .op = BROKER_ADD,
                                      .done = on_done,
                                      .data = batch,
                                      .add = { .specs = (const struct spec *const *)batch->specs,
                                               .count = batch->count,
                                               .added = batch->added } };
    broker_submit(intake->client->broker, &batch->req);

    intake->filling = (intake->filling + 1) % INTAKE_IN_FLIGHT;
    while (intake->batches[intake->filling].busy)
        (void)uv_run(&intake->client->loop, UV_RUN_ONCE);
    return failed(intake, err);
}

int intake_add(struct intake *intake, const json_t *job, const json_t *defaults, size_t weight,
               struct mandor_err *err)
{
    OBJ_CHECK(intake, INTAKE_MAGIC);
    SCOPED(spec_free) struct spec *spec = NULL;

    int r = failed(intake, err);
    if (r == 0)
        r = spec_from_json(job, defaults, &spec, err);
    if (r == 0)
        r = job_check(spec, err);
    if (r == 0)
        r = broker_check_spec(intake->client->broker, spec, err);
    if (r < 0)
        return r;

    struct batch *batch = &intake->batches[intake->filling];
    batch->specs[batch->count++] = STEAL(spec);
    batch->weight += weight;
    if (batch->count < INTAKE_BATCH && batch->weight < INTAKE_BATCH_BYTES)
        return failed(intake, err);
    return send_batch(intake, err);
}

static bool any_busy(const struct intake *intake)
{
    for (size_t i = 0; i < INTAKE_IN_FLIGHT; i++)
        if (intake->batches[i].busy)
            return true;
    return false;
}

/* Both the loop and fd can wake us.  libuv would make fd non-blocking, which is shared with whoever gave it to us: so poll(2). */
int intake_await(struct intake *intake, int fd, struct mandor_err *err)
{
    OBJ_CHECK(intake, INTAKE_MAGIC);
    uv_loop_t *loop = &intake->client->loop;
    struct pollfd polled[] = { { .fd = fd, .events = POLLIN },
                               { .fd = uv_backend_fd(loop), .events = POLLIN } };

    if (RETRY_EINTR(poll(polled, 1, 0)) != 0)
        return failed(intake, err);

    int r = send_batch(intake, err);
    while (r == 0) {
        (void)uv_run(loop, UV_RUN_NOWAIT);
        polled[0].revents = 0;
        if (poll(polled, any_busy(intake) ? 2 : 1, -1) < 0 && errno != EINTR)
            return err_set(err, -errno, FAULT_HOST, "wait for input");
        r = failed(intake, err);
        if (polled[0].revents != 0)
            break;
    }
    return r;
}

int intake_finish(struct intake *intake, struct mandor_err *err)
{
    OBJ_CHECK(intake, INTAKE_MAGIC);

    (void)send_batch(intake, NULL);
    for (size_t i = 0; i < INTAKE_IN_FLIGHT; i++)
        while (intake->batches[i].busy)
            (void)uv_run(&intake->client->loop, UV_RUN_ONCE);
    return failed(intake, err);
}
