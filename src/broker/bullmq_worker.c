/* bullmq_worker.c - what a worker does besides taking and settling jobs: locks, stalled jobs, schedules, its place in the lists. */
#include <stdio.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "broker/bullmq.h"
#include "broker/data_dir.h"
#include "broker/lua_scripts.h"
#include "job/cron.h"

#define SWEEP_MS 5000 /* between looks at what dead workers of this machine left */

/* ---- start: the fetch has counted it already ---- */

bool bullmq_cancel_asked(const struct bullmq_held *held)
{
    static const char asked[] = "{\"cancel_requested\":true";
    return strncmp(held->record, asked, sizeof asked - 1) == 0;
}

void bullmq_start(struct bullmq *mq, struct broker_req *req)
{
    struct bullmq_held *held = hash_gets(mq->held, req->start.id);

    if (held == NULL || held->lost || held->attempt != req->start.attempt) {
        bullmq_answer(mq, req, -ESTALE);
        return;
    }
    req->start.cancelled = bullmq_cancel_asked(held);
    bullmq_answer(mq, req, 0);
}

/* ---- renewal: a quarter of the lock's time after the last one, whatever the worker does ---- */

/* A lock that could not be renewed counts as lost so long before it expires. */
#define MARGIN_MS 5000

/* One queue's locks. */
struct renewal {
    struct bullmq_queue *queue;
    struct bullmq_args args;
    int64_t asked_ms; /* monotonic */
    size_t count;
    struct {
        char *lease_id;
        int64_t attempt;
    } * jobs;
};

static void free_renewal(struct renewal *renewal)
{
    for (size_t i = 0; i < renewal->count; i++)
        free(renewal->jobs[i].lease_id);
    free(renewal->jobs);
    free(renewal);
}

static void lose(struct bullmq_held *held, const char *why)
{
    if (held->doubtful)
        return; /* it may have been its end that let go of the lock: whoever writes that again finds out */
    if (!held->lost)
        log_warn("could not renew lock for job %s of BullMQ's queue '%s': %s", held->id,
                 held->queue->name, why);
    held->lost = true;
}

static void on_renewed(void *arg, int result, const redisReply *reply, const struct mandor_err *err)
{
    struct renewal *renewal = arg;
    struct bullmq *mq = renewal->queue->mq;
    bool news = false;

    renewal->queue->renewing = false;
    if (result < 0 && !mq->closing)
        log_warn("locks of BullMQ's queue '%s' were not renewed: %s", renewal->queue->name,
                 err->msg);
    for (size_t i = 0; result == 0 && i < renewal->count && i < reply->elements; i++) {
        struct bullmq_held *held = hash_gets(mq->held, renewal->jobs[i].lease_id);
        int64_t code = bullmq_reply_int(reply, i);
        if (held == NULL || held->attempt != renewal->jobs[i].attempt)
            continue; /* settled meanwhile: the question has answered itself */
        held->renewed_ms = renewal->asked_ms;
        if (code == 0)
            lose(held, "it is gone, or somebody else's");
        else if (code == 2)
            held->cancel = true;
        news = news || code != 1;
    }
    free_renewal(renewal);
    if (news && !mq->closing)
        broker_woken(mq->broker);
}

static void collect(void *value, void *arg)
{
    struct bullmq_held *held = value;
    struct renewal *renewal = arg;

    if (held->queue != renewal->queue || held->lost)
        return;
    char *lease_id = bullmq_lease_id(held->queue, held->id);
    if (lease_id == NULL)
        return;
    renewal->jobs[renewal->count].lease_id = lease_id;
    renewal->jobs[renewal->count++].attempt = held->attempt;
    bullmq_args_text(&renewal->args, held->id);
    bullmq_arg_int(&renewal->args, held->attempt);
}

static void renew_queue(struct bullmq_queue *queue)
{
    struct bullmq *mq = queue->mq;
    struct renewal *renewal = calloc(1, sizeof *renewal);

    if (renewal == NULL ||
        (renewal->jobs = calloc(hash_count(mq->held), sizeof *renewal->jobs)) == NULL) {
        free(renewal);
        return; /* the next time */
    }
    renewal->queue = queue;
    renewal->asked_ms = clock_mono_ms();
    bullmq_args_init(&renewal->args, queue);
    bullmq_args_text(&renewal->args, mq->stem);
    bullmq_arg_int(&renewal->args, mq->lock_ms);
    hash_each(mq->held, collect, renewal);
    queue->renewing = true;
    bullmq_call(queue, &renewal->args, &lua_bullmq_renew, 0, on_renewed, renewal);
}

struct overdue {
    const struct bullmq *mq;
    bool any;
};

static void check_expiry(void *value, void *arg)
{
    struct bullmq_held *held = value;
    struct overdue *overdue = arg;
    int64_t lock_ms = overdue->mq->lock_ms;

    if (held->lost ||
        clock_mono_ms() - held->renewed_ms < lock_ms - MIN((int64_t)MARGIN_MS, lock_ms / 3))
        return;
    lose(held, "the server did not answer in time");
    overdue->any = true;
}

void bullmq_renew_locks(struct bullmq *mq)
{
    struct overdue overdue = { .mq = mq };

    if (hash_count(mq->held) == 0)
        return;
    hash_each(mq->held, check_expiry, &overdue);
    for (size_t i = 0; i < mq->queue_count; i++)
        if (mq->queues[i]->served && !mq->queues[i]->renewing)
            renew_queue(mq->queues[i]);
    if (overdue.any)
        broker_woken(mq->broker);
}

static void on_renew_timer(uv_timer_t *timer)
{
    bullmq_renew_locks(timer->data);
}

/* From now on. */
static void keep_locks(struct bullmq *mq)
{
    uint64_t period_ms = (uint64_t)MAX(mq->lock_ms / 4, (int64_t)50);
    (void)uv_timer_start(&mq->renew_timer, on_renew_timer, period_ms, period_ms);
}

/* The worker asks what has come of its leases: that is known already. */
void bullmq_renew(struct bullmq *mq, struct broker_req *req)
{
    int64_t now_ms = clock_mono_ms(), renewed_ms = now_ms;

    for (size_t i = 0; i < req->renew.count; i++) {
        const struct bullmq_held *held = hash_gets(mq->held, req->renew.refs[i].id);
        bool mine = held != NULL && !held->lost && held->attempt == req->renew.refs[i].attempt;
        req->renew.flags[i] = !mine ? RENEW_LOST : held->cancel ? RENEW_CANCEL : 0;
        if (mine)
            renewed_ms = MIN(renewed_ms, held->renewed_ms);
    }
    req->renew.left_ms = renewed_ms + mq->lock_ms - now_ms;
    bool overdue = now_ms - renewed_ms > mq->lock_ms / 2;
    bullmq_answer(mq, req,
                  overdue ? err_set(&req->err, -EAGAIN, FAULT_REMOTE, "Redis at %s does not answer",
                                    redis_text(mq->calls))
                          : 0);
}

void bullmq_hear_cancel(struct bullmq *mq, const char *channel, const char *id)
{
    for (size_t i = 0; i < mq->queue_count; i++) {
        struct bullmq_queue *queue = mq->queues[i];
        if (strncmp(channel, queue->base, queue->base_len) != 0 ||
            !str_eq(channel + queue->base_len, "mandor")) /* "a:" begins "a:b:", too */
            continue;
        SCOPED_FREE char *lease_id = bullmq_lease_id(queue, id);
        struct bullmq_held *held = lease_id != NULL ? hash_gets(mq->held, lease_id) : NULL;
        if (held != NULL)
            held->cancel = true;
    }
    broker_woken(mq->broker);
}

/* ---- the fence before a commit ---- */

struct fence {
    struct bullmq *mq;
    struct broker_req *req;
};

static void on_fenced(void *arg, int result, const redisReply *reply, const struct mandor_err *err)
{
    struct fence *fence = arg;

    fence->req->begin_settle.left_ms = fence->mq->lock_ms;
    if (result < 0)
        bullmq_fail(fence->mq, fence->req, result, err);
    else
        bullmq_answer(fence->mq, fence->req, bullmq_reply_int(reply, 0) > 0 ? 0 : -ESTALE);
    free(fence);
}

void bullmq_begin_settle(struct bullmq *mq, struct broker_req *req)
{
    const struct bullmq_held *held = hash_gets(mq->held, req->begin_settle.id);
    struct bullmq_args args;

    if (held == NULL || held->lost || held->attempt != req->begin_settle.attempt) {
        bullmq_answer(mq, req, -ESTALE);
        return;
    }
    struct fence *fence = calloc(1, sizeof *fence);
    if (fence == NULL) {
        bullmq_answer(mq, req, err_set(&req->err, -ENOMEM, FAULT_HOST, "settle a job"));
        return;
    }
    *fence = (struct fence){ .mq = mq, .req = req };
    bullmq_args_init(&args, held->queue);
    bullmq_args_text(&args, mq->stem);
    bullmq_arg_int(&args, mq->lock_ms);
    bullmq_args_text(&args, held->id);
    bullmq_arg_int(&args, held->attempt);
    bullmq_call(held->queue, &args, &lua_bullmq_renew, REDIS_AGAIN, on_fenced, fence);
}

/* ---- what a job says of itself ---- */

static void on_noted(void *arg, int result, const redisReply *reply, const struct mandor_err *err)
{
    (void)arg, (void)reply;
    if (result < 0)
        log_warn("what a job said of itself is lost: %s", err->msg);
}

/* Answered at once: the job goes on, and what it says next comes after this on the same connection. */
void bullmq_note(struct bullmq *mq, struct broker_req *req)
{
    const struct bullmq_held *held = hash_gets(mq->held, req->note.id);
    struct bullmq_args args;

    if (held != NULL && !held->lost) {
        bullmq_args_init(&args, held->queue);
        bullmq_args_text(&args, held->id);
        bullmq_args_text(&args, req->note.kind);
        bullmq_args_text(&args, req->note.value);
        bullmq_arg_int(&args, held->opts.keep_logs);
        bullmq_call(held->queue, &args, &lua_bullmq_note, 0, on_noted, NULL);
    }
    bullmq_answer(mq, req, 0);
}

/* An attempt that lasts: whoever asks for it finds where it runs. */
void bullmq_phase(struct bullmq *mq, struct broker_req *req)
{
    const struct bullmq_held *held = hash_gets(mq->held, req->phase.id);

    if (held == NULL || held->lost || held->attempt != req->phase.attempt) {
        bullmq_answer(mq, req, -ESTALE);
        return;
    }
    SCOPED_JSON *before = bullmq_record_parse(held->record, strlen(held->record));
    struct bullmq_record record = { .worker = mq->worker,
                                    .attempt = held->attempt,
                                    .state = JOB_ACTIVE,
                                    .phase = req->phase.phase,
                                    .put_backs = bullmq_number(before, "put_backs", 0),
                                    .before = held->record };
    SCOPED_FREE char *text = bullmq_record_text(&record);
    SCOPED_BUF token = { 0 };
    if (text != NULL && buf_addf(&token, "%s:%" PRId64, mq->stem, held->attempt) == 0) {
        struct bullmq_args args;
        bullmq_args_init(&args, held->queue);
        bullmq_args_text(&args, held->id);
        bullmq_args_text(&args, "record");
        bullmq_args_text(&args, text);
        bullmq_args_text(&args, token.data);
        bullmq_call(held->queue, &args, &lua_bullmq_note, 0, on_noted, NULL);
    }
    bullmq_answer(mq, req, 0);
}

/* ---- stalled jobs ---- */

static void recovered(struct bullmq *mq)
{
    if (mq->sweeping)
        return;
    for (size_t i = 0; i < mq->queue_count; i++)
        if (mq->queues[i]->checking)
            return;
    for (struct list *node; (node = list_pop_front(&mq->recovers)) != NULL;)
        bullmq_answer(mq, LIST_ENTRY(node, struct broker_req, node), 0);
}

static void check_due(struct bullmq *mq);

/* The check is one for all workers of a queue: whoever finds that another has made it comes back when the next is due. */
static void on_checked(void *arg, int result, const redisReply *reply, const struct mandor_err *err)
{
    struct bullmq_queue *queue = arg;
    struct bullmq *mq = queue->mq;
    int64_t next_ms = result == 0 ? bullmq_reply_int(reply, 0) : -1;

    queue->checking = false;
    if (result < 0 && !mq->closing)
        log_warn("look for stalled jobs of BullMQ's queue '%s': %s", queue->name, err->msg);
    for (size_t i = 1; result == 0 && i < reply->elements; i++)
        log_warn("job %s of BullMQ's queue '%s' had stalled: it waits again",
                 bullmq_reply_text(reply, i, NULL), queue->name);
    if (result == 0 && reply->elements > 1) {
        queue->dry = false;
        LIST_FOREACH(req, &mq->recovers, struct broker_req, node)
            req->recover.recovered += reply->elements - 1;
        broker_woken(mq->broker);
    }
    queue->stalled_due_ms =
        clock_mono_ms() +
        (next_ms < 0 ? mq->settings.stalled_ms : MIN(next_ms + 1, mq->settings.stalled_ms));
    check_due(mq);
    recovered(mq);
}

static void check(struct bullmq_queue *queue)
{
    struct bullmq_args args;

    queue->checking = true;
    bullmq_args_init(&args, queue);
    bullmq_arg_int(&args, queue->mq->settings.stalled_ms);
    bullmq_arg_int(&args, queue->mq->settings.max_stalled);
    bullmq_call(queue, &args, &lua_bullmq_stalled, REDIS_AGAIN, on_checked, queue);
}

static void on_stalled_timer(uv_timer_t *timer)
{
    check_due(timer->data);
}

/* Each queue whose time has come; the timer is for the others. */
static void check_due(struct bullmq *mq)
{
    int64_t now_ms = clock_mono_ms(), left_ms = INT64_MAX;

    if (mq->closing)
        return;
    for (size_t i = 0; i < mq->queue_count; i++) {
        struct bullmq_queue *queue = mq->queues[i];
        if (!queue->served || queue->checking)
            continue;
        if (now_ms >= queue->stalled_due_ms)
            check(queue);
        else
            left_ms = MIN(left_ms, queue->stalled_due_ms - now_ms);
    }
    if (left_ms < INT64_MAX)
        (void)uv_timer_start(&mq->stalled_timer, on_stalled_timer, (uint64_t)left_ms, 0);
}

static void sweep(struct work *work)
{
    struct bullmq *mq = CONTAINER_OF(work, struct bullmq, sweep);

    (void)data_dir_sweep(broker_data_dir(mq->broker), mq->worker, NULL, NULL, mq->sweep_empty,
                         mq->sweep_arg);
}

static void on_swept(struct work *work)
{
    struct bullmq *mq = CONTAINER_OF(work, struct bullmq, sweep);

    mq->sweeping = false;
    recovered(mq);
}

void bullmq_recover(struct bullmq *mq, struct broker_req *req)
{
    req->recover.due = req->recover.recovered = req->recover.removed = 0;
    list_push_back(&mq->recovers, &req->node);
    if (!mq->sweeping && clock_mono_ms() >= mq->sweep_due_ms) {
        mq->sweeping = true;
        mq->sweep_due_ms = clock_mono_ms() + SWEEP_MS;
        mq->sweep_empty = req->recover.empty;
        mq->sweep_arg = req->recover.arg;
        work_submit(broker_loop(mq->broker), &mq->sweep, WORK_UNKNOWN, sweep, on_swept);
    }
    check_due(mq);
    recovered(mq);
}

/* ---- schedules ---- */

struct schedule {
    char *queue, *id, *rjk;
};

static void on_repeated(void *arg, int result, const redisReply *reply,
                        const struct mandor_err *err)
{
    struct schedule *schedule = arg;
    int64_t code = result == 0 ? bullmq_reply_int(reply, 0) : 0;

    if (result < 0)
        log_error("the job after %s of BullMQ's queue '%s' was not scheduled: %s", schedule->id,
                  schedule->queue, err->msg);
    else if (code == -2)
        log_warn("job %s of BullMQ's queue '%s' is a repeatable of an old version: it is run, and "
                 "not repeated",
                 schedule->id, schedule->queue);
    free(schedule->queue);
    free(schedule->id);
    free(schedule->rjk);
    free(schedule);
}

/* When a pattern's next job is due; 0 = never, or by `every`. */
static int64_t by_pattern(const struct bullmq_held *held, const char *pattern, bool *ret_never)
{
    const json_t *repeat = held->opts.repeat;
    const char *zone = json_string_value(json_object_get(repeat, "tz"));
    int64_t base = MAX(clock_wall_ms(), held->opts.prev_ms), next = 0;
    int64_t from = MAX(base, bullmq_number(repeat, "startDate", 0));
    struct mandor_err err;

    int r = cron_next(pattern, zone, from, &next, &err);
    if (r < 0 && r != -ENOENT)
        log_error("job %s of BullMQ's queue '%s' is not repeated: %s", held->id, held->queue->name,
                  err.msg);
    *ret_never = r < 0;
    return next;
}

static bool repeats(const struct bullmq_held *held, int64_t count)
{
    const json_t *repeat = held->opts.repeat;
    int64_t limit = bullmq_number(repeat, "limit", 0);
    int64_t end_ms = bullmq_number(repeat, "endDate", 0);

    return json_is_object(repeat) && !(limit > 0 && count > limit) &&
           !(end_ms > 0 && end_ms < clock_wall_ms());
}

void bullmq_repeat(struct bullmq_queue *queue, const struct bullmq_held *held, const char *rjk)
{
    const json_t *repeat = held->opts.repeat;
    int64_t count = bullmq_number(repeat, "count", 0) + 1;
    const char *pattern = json_string_value(json_object_get(repeat, "pattern"));
    bool never = false;

    if (!repeats(held, count))
        return;
    int64_t next = pattern != NULL ? by_pattern(held, pattern, &never) : 0;
    SCOPED_FREE char *opts = bullmq_repeat_opts(&held->opts, count);
    struct schedule *schedule = calloc(1, sizeof *schedule);
    if (never || opts == NULL || schedule == NULL) {
        free(schedule);
        return;
    }
    schedule->queue = strdup(queue->name);
    schedule->id = strdup(held->id);
    schedule->rjk = strdup(rjk);

    struct bullmq_args args;
    bullmq_args_init(&args, queue);
    bullmq_args_text(&args, rjk);
    bullmq_args_text(&args, held->id);
    if (pattern != NULL)
        bullmq_arg_int(&args, next);
    else
        bullmq_args_text(&args, "");
    bullmq_arg_int(&args, bullmq_number(repeat, "every", 0));
    bullmq_arg_int(&args, bullmq_number(repeat, "offset", 0));
    bullmq_args_text(&args, opts);
    bullmq_arg_int(&args, held->opts.priority);
    bullmq_arg_int(&args, held->opts.lifo);
    bullmq_call(queue, &args, &lua_bullmq_repeat, REDIS_AGAIN, on_repeated, schedule);
}

/* ---- the worker's place ---- */

static int serve(struct bullmq *mq, const char *name, struct mandor_err *err)
{
    struct bullmq_queue *queue = bullmq_queue(mq, name);

    if (queue == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "serve queue '%s'", name);
    if (queue->waiter != NULL)
        return 0;
    SCOPED_FREE char *client = bullmq_client_name(mq->settings.prefix, name, mq->settings.name);
    SCOPED_BUF channel = { 0 };
    struct redis_options options = { .client_name = client };
    if (client == NULL || buf_addf(&channel, "%smandor", queue->base) < 0)
        return err_set(err, -ENOMEM, FAULT_HOST, "serve queue '%s'", name);
    int r = redis_new(broker_loop(mq->broker), &mq->url, &options, &queue->waiter, err);
    if (r < 0)
        return r;
    mq->open++;
    queue->served = true;
    r = redis_subscribe(mq->ears, channel.data);
    return r < 0 ? err_set(err, r, FAULT_HOST, "listen for cancels of queue '%s'", name) : 0;
}

static int serve_all(struct bullmq *mq, const char *queues, struct mandor_err *err)
{
    SCOPED_JSON *names = json_loads(queues, 0, NULL);
    size_t i;
    json_t *name;

    if (json_array_size(names) == 0)
        return err_set(err, -EINVAL, FAULT_CALLER,
                       "a worker of BullMQ needs the names of its queues: --queue NAME, or "
                       "'queues' in the configuration");
    json_array_foreach(names, i, name) {
        int r = serve(mq, json_string_value(name), err);
        if (r < 0)
            return r;
    }
    return 0;
}

struct registration {
    struct bullmq *mq;
    struct broker_req *req;
};

/* The server is there. */
static void on_greeted(void *arg, int result, const redisReply *reply, const struct mandor_err *err)
{
    struct registration *registration = arg;
    struct bullmq *mq = registration->mq;
    struct broker_req *req = registration->req;
    int version = redis_version(mq->calls);

    free(registration);
    (void)reply;
    if (result < 0) {
        bullmq_fail(mq, req, result, err);
        return;
    }
    if (version > 0 && version < 50000) {
        bullmq_answer(mq, req,
                      err_set(&req->err, -ENOTSUP, FAULT_HOST,
                              "Redis at %s is older than 5.0: BullMQ's queues need a newer one",
                              redis_text(mq->calls)));
        return;
    }
    if (version > 0 && version < 60200)
        log_warn("Redis at %s is older than 6.2, which BullMQ recommends", redis_text(mq->calls));
    const char *policy = redis_evicts(mq->calls);
    if (policy != NULL)
        log_warn("Redis at %s may throw jobs away: its maxmemory-policy is '%s', queues need "
                 "'noeviction'",
                 redis_text(mq->calls), policy);
    bullmq_answer(mq, req, 0);
}

void bullmq_register(struct bullmq *mq, struct broker_req *req)
{
    struct registration *registration = calloc(1, sizeof *registration);
    const char *argv[] = { "PING" };

    (void)snprintf(mq->worker, sizeof mq->worker, "%s", req->reg.worker);
    mq->lock_ms = mq->settings.lock_ms > 0 ? mq->settings.lock_ms
                  : req->reg.lease_ms > 0  ? req->reg.lease_ms
                                           : BULLMQ_LOCK_MS;
    keep_locks(mq);
    int r = registration == NULL ? err_set(&req->err, -ENOMEM, FAULT_HOST, "register a worker")
                                 : serve_all(mq, req->reg.queues, &req->err);
    if (r < 0) {
        free(registration);
        bullmq_answer(mq, req, r);
        return;
    }
    *registration = (struct registration){ .mq = mq, .req = req };
    redis_call(mq->calls, REDIS_AGAIN, req->reg.wait_ms > 0 ? req->reg.wait_ms : BULLMQ_CALL_MS, 1,
               argv, NULL, on_greeted, registration);
}
