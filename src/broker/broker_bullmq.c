/* broker_bullmq.c - queues of BullMQ 5 and 6 in a Redis, beside stock producers, workers and listeners.
 *
 * This file opens and closes, and hands requests to the others; bullmq.h has the picture, doc/bullmq.md says what users need to know. */
#include <stdio.h>
#include <sys/random.h>

#include "base/hex.h"
#include "base/log.h"
#include "base/random.h"
#include "base/units.h"
#include "broker/bullmq.h"
#include "broker/data_dir.h"

#define STALLED_MS 30000

static struct bullmq *self(struct broker *broker)
{
    return *(struct bullmq **)broker_state(broker);
}

/* ---- what the URL says ---- */

static int bad_param(const struct redis_url *url, const char *key, const char *expected,
                     struct mandor_err *err)
{
    return err_set(err, -EINVAL, FAULT_CALLER, "broker '%s': %s=%s, expected %s", url->text, key,
                   redis_url_param(url, key), expected);
}

static int get_count(const struct redis_url *url, const char *key, int64_t *ret,
                     struct mandor_err *err)
{
    const char *text = redis_url_param(url, key);
    char *end;

    if (text == NULL)
        return 0;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || value < 0)
        return bad_param(url, key, "a number", err);
    *ret = value;
    return 0;
}

static int get_ms(const struct redis_url *url, const char *key, int64_t *ret,
                  struct mandor_err *err)
{
    const char *text = redis_url_param(url, key);
    int64_t ms;

    if (text == NULL)
        return 0;
    if (units_parse_duration(text, &ms, NULL) < 0 || ms < 1)
        return bad_param(url, key, "a duration such as 30s", err);
    *ret = ms;
    return 0;
}

static int get_keep(const struct redis_url *url, const char *key, struct bullmq_keep *ret,
                    struct mandor_err *err)
{
    *ret = (struct bullmq_keep){ .count = -1, .limit = BULLMQ_KEEP_LIMIT };
    ret->given = redis_url_param(url, key) != NULL;
    return ret->given ? get_count(url, key, &ret->count, err) : 0;
}

static int read_settings(struct bullmq *mq, struct mandor_err *err)
{
    static const char *const own[] = { "prefix",        "name",
                                       "lock",          "stalled_interval",
                                       "max_stalled",   "max_started",
                                       "limiter_max",   "limiter_duration",
                                       "metrics",       "remove_on_complete",
                                       "remove_on_fail" };
    const struct redis_url *url = &mq->url;
    struct bullmq_settings *settings = &mq->settings;
    const char *prefix = redis_url_param(url, "prefix"), *name = redis_url_param(url, "name");
    int r;

    settings->stalled_ms = STALLED_MS;
    settings->max_stalled = 1;
    settings->limit_ms = 1000;
    settings->prefix = strdup(prefix != NULL ? prefix : "bull");
    settings->name = name != NULL && name[0] != '\0' ? strdup(name) : NULL;
    if (settings->prefix == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "open broker");
    if ((r = redis_url_check_params(url, own, ARRAY_LEN(own), err)) < 0 ||
        (r = get_ms(url, "lock", &settings->lock_ms, err)) < 0 ||
        (r = get_ms(url, "stalled_interval", &settings->stalled_ms, err)) < 0 ||
        (r = get_count(url, "max_stalled", &settings->max_stalled, err)) < 0 ||
        (r = get_count(url, "max_started", &settings->max_started, err)) < 0 ||
        (r = get_count(url, "limiter_max", &settings->limit_max, err)) < 0 ||
        (r = get_ms(url, "limiter_duration", &settings->limit_ms, err)) < 0 ||
        (r = get_count(url, "metrics", &settings->metrics_points, err)) < 0 ||
        (r = get_keep(url, "remove_on_complete", &settings->completed, err)) < 0)
        return r;
    return get_keep(url, "remove_on_fail", &settings->failed, err);
}

/* ---- queues ---- */

static struct bullmq_queue *free_queue(struct bullmq_queue *queue)
{
    if (queue == NULL)
        return NULL;
    free(queue->name);
    free(queue->base);
    free(queue->meta);
    free(queue);
    return NULL;
}

static struct bullmq_queue *new_queue(struct bullmq *mq, const char *name)
{
    struct bullmq_queue *queue = calloc(1, sizeof *queue);
    SCOPED_BUF base = { 0 }, meta = { 0 };

    if (queue == NULL)
        return NULL;
    queue->mq = mq;
    list_init(&queue->ends);
    if ((queue->name = strdup(name)) == NULL ||
        buf_addf(&base, "%s:%s:", mq->settings.prefix, name) < 0 ||
        buf_addf(&meta, "%smeta", base.data) < 0)
        return free_queue(queue);
    queue->base_len = base.len;
    queue->base = buf_steal(&base);
    queue->meta = buf_steal(&meta);
    return queue;
}

struct bullmq_queue *bullmq_queue(struct bullmq *mq, const char *name)
{
    for (size_t i = 0; i < mq->queue_count; i++)
        if (str_eq(mq->queues[i]->name, name))
            return mq->queues[i];

    struct bullmq_queue **grown = realloc(mq->queues, (mq->queue_count + 1) * sizeof *grown);
    if (grown == NULL)
        return NULL;
    mq->queues = grown;
    struct bullmq_queue *queue = new_queue(mq, name);
    if (queue != NULL)
        mq->queues[mq->queue_count++] = queue;
    return queue;
}

/* ---- the turn ---- */

static void answer_all(struct bullmq *mq)
{
    for (struct list *node; (node = list_pop_front(&mq->answers)) != NULL;) {
        mq->unanswered--;
        broker_answer(mq->broker, LIST_ENTRY(node, struct broker_req, node));
    }
}

/* What goes to the server is on its way before answers are acted upon: it works while our jobs start. */
static void on_turn(uv_prepare_t *turn)
{
    struct bullmq *mq = turn->data;

    (void)uv_prepare_stop(turn);
    if (!bullmq_flush(mq))
        answer_all(mq);
    if (!list_empty(&mq->answers))
        bullmq_turn(mq);
}

/* Others that wait for the end of the turn run in this phase too: what they ask for goes along. */
static void on_awake(uv_idle_t *awake)
{
    struct bullmq *mq = awake->data;

    (void)uv_idle_stop(awake);
    (void)uv_prepare_start(&mq->turn, on_turn);
}

void bullmq_turn(struct bullmq *mq)
{
    if (mq->closing)
        return;
    (void)uv_idle_start(&mq->awake, on_awake);
}

void bullmq_answer(struct bullmq *mq, struct broker_req *req, int status)
{
    req->status = status;
    if (status == -ESTALE && req->err.code == 0)
        (void)err_say(&req->err, status, FAULT_REMOTE, "the job is not ours any more");
    list_push_back(&mq->answers, &req->node);
    bullmq_turn(mq);
}

void bullmq_fail(struct bullmq *mq, struct broker_req *req, int status,
                 const struct mandor_err *err)
{
    if (&req->err != err)
        req->err = *err;
    bullmq_answer(mq, req, status);
}

/* ---- requests ---- */

static void unregister(struct bullmq *mq, struct broker_req *req)
{
    bullmq_answer(mq, req, 0); /* its connections say by themselves that it has gone */
}

static void (*const handlers[BROKER_OPS])(struct bullmq *mq, struct broker_req *req) = {
    [BROKER_ADD] = bullmq_add,
    [BROKER_LEASE] = bullmq_lease,
    [BROKER_START] = bullmq_start,
    [BROKER_RENEW] = bullmq_renew,
    [BROKER_BEGIN_SETTLE] = bullmq_begin_settle,
    [BROKER_SETTLE] = bullmq_settle,
    [BROKER_GIVE_BACK] = bullmq_give_back,
    [BROKER_PHASE] = bullmq_phase,
    [BROKER_NOTE] = bullmq_note,
    [BROKER_RECOVER] = bullmq_recover,
    [BROKER_REGISTER] = bullmq_register,
    [BROKER_UNREGISTER] = unregister,
    [BROKER_SHOW] = bullmq_show,
    [BROKER_LIST] = bullmq_list,
    [BROKER_OUTPUT] = bullmq_output,
    [BROKER_CANCEL] = bullmq_change,
    [BROKER_RETRY] = bullmq_change,
    [BROKER_REMOVE] = bullmq_change,
    [BROKER_PAUSE] = bullmq_pause,
    [BROKER_STATS] = bullmq_stats,
};

static void bullmq_submit(struct broker *broker, struct broker_req *req)
{
    struct bullmq *mq = self(broker);

    mq->unanswered++;
    handlers[req->op](mq, req);
}

/* ---- life ---- */

static void free_held(void *value, void *arg)
{
    (void)arg;
    (void)bullmq_held_free(value);
}

static void free_bullmq(struct bullmq *mq)
{
    LIST_FOREACH(end, &mq->taken, struct bullmq_end, node)
        bullmq_end_free(end);
    for (size_t i = 0; i < mq->queue_count; i++)
        free_queue(mq->queues[i]);
    free(mq->queues);
    if (mq->held != NULL)
        hash_each(mq->held, free_held, NULL);
    mq->held = hash_free(mq->held);
    mq->taken_by_id = hash_free(mq->taken_by_id);
    free(mq->settings.prefix);
    free(mq->settings.name);
    redis_url_done(&mq->url);
    free(mq);
}

/* Of mq->open. */
static void on_part_closed(void *arg)
{
    struct bullmq *mq = arg;

    if (--mq->open > 0)
        return;
    struct broker *broker = mq->broker;
    free_bullmq(mq);
    broker_closed(broker);
}

static void on_turn_closed(uv_handle_t *handle)
{
    on_part_closed(handle->data);
}

static void on_timer_closed(uv_handle_t *handle)
{
    struct bullmq_queue *queue = handle->data;
    on_part_closed(queue->mq);
}

static void close_queue(struct bullmq_queue *queue)
{
    if (queue->timer_open)
        uv_close((uv_handle_t *)&queue->timer, on_timer_closed);
    if (queue->waiter != NULL)
        redis_close(queue->waiter, on_part_closed, queue->mq);
    LIST_FOREACH(end, &queue->ends, struct bullmq_end, node)
        bullmq_end_free(end);
    list_init(&queue->ends);
}

static void close_now(struct bullmq *mq)
{
    mq->closing = true;
    answer_all(mq);
    for (size_t i = 0; i < mq->queue_count; i++)
        close_queue(mq->queues[i]);
    uv_close((uv_handle_t *)&mq->turn, on_turn_closed);
    uv_close((uv_handle_t *)&mq->awake, on_turn_closed);
    uv_close((uv_handle_t *)&mq->renew_timer, on_turn_closed);
    uv_close((uv_handle_t *)&mq->stalled_timer, on_turn_closed);
    if (mq->ears != NULL)
        redis_close(mq->ears, on_part_closed, mq);
    redis_close(mq->calls, on_part_closed, mq);
}

static bool busy(const struct bullmq *mq)
{
    for (size_t i = 0; i < mq->queue_count; i++)
        if (mq->queues[i]->step != NULL || mq->queues[i]->end_count > 0)
            return true;
    return mq->unanswered > 0;
}

/* Jobs that were given back are still under way. */
static void on_last_turn(uv_prepare_t *turn)
{
    struct bullmq *mq = turn->data;

    answer_all(mq);
    (void)bullmq_flush(mq);
    if (!busy(mq))
        close_now(mq);
}

static void bullmq_close(struct broker *broker)
{
    struct bullmq *mq = self(broker);

    if (!busy(mq)) {
        close_now(mq);
        return;
    }
    (void)uv_prepare_stop(&mq->turn);
    (void)uv_prepare_start(&mq->turn, on_last_turn);
    (void)uv_idle_start(&mq->awake, on_awake);
}

/* Somebody asked for a job's cancellation: the worker's renewal hears of it. */
static void on_message(void *arg, const char *channel, const char *payload, size_t len)
{
    struct bullmq *mq = arg;

    SCOPED_FREE char *id = strndup(payload, len);
    if (id != NULL)
        bullmq_hear_cancel(mq, channel, id);
}

static void on_up(void *arg)
{
    struct bullmq *mq = arg;

    if (mq->was_up && !mq->closing) {
        bullmq_settle_again(mq);
        bullmq_renew_locks(mq);
    }
    mq->was_up = true;
}

static void on_down(void *arg, const struct mandor_err *err)
{
    const struct bullmq *mq = arg;

    if (broker_is_worker(mq->broker))
        log_warn("connection lost: %s", err->msg);
}

static int connect_all(struct bullmq *mq, bool worker, struct mandor_err *err)
{
    struct redis_options calls = {
        .client_name = "mandor", .once = !worker, .on_up = on_up, .on_down = on_down, .arg = mq
    };
    struct redis_options ears = { .client_name = "mandor", .on_message = on_message, .arg = mq };

    int r = redis_new(broker_loop(mq->broker), &mq->url, &calls, &mq->calls, err);
    if (r < 0)
        return r;
    mq->open++;
    if (!worker)
        return 0;
    r = redis_new(broker_loop(mq->broker), &mq->url, &ears, &mq->ears, err);
    mq->open += r == 0;
    return r;
}

static int make_stem(struct bullmq *mq)
{
    unsigned char random[16];

    if (getrandom(random, sizeof random, 0) != sizeof random)
        return -EIO;
    (void)hex_encode(random, sizeof random, mq->stem);
    mq->random = random_seed();
    return 0;
}

/* Workers of one queue server share a place on this machine, whatever they are set to. */
static int data_dir(const struct redis_url *url, char **ret, struct mandor_err *err)
{
    SCOPED_BUF name = { 0 };
    SCOPED_FREE char *path = NULL;
    int r = url->unix_path != NULL ? buf_addf(&name, "bullmq-%s-%d", url->unix_path, url->db)
                                   : buf_addf(&name, "bullmq-%s-%d-%d", url->hosts[0].name,
                                              url->hosts[0].port, url->db);

    if (r < 0)
        return err_set(err, r, FAULT_HOST, "open broker '%s'", url->text);
    for (char *p = name.data; *p != '\0'; p++)
        if (*p <= ' ' || *p >= 127 || *p == '/')
            *p = '_';
    r = data_dir_standard(name.data, &path, err);
    if (r == -ENODATA)
        return err_set(err, -EINVAL, FAULT_CALLER,
                       "no place for a worker's files: neither XDG_STATE_HOME nor HOME is set");
    return r < 0 ? r : data_dir_make(path, ret, err);
}

static int bullmq_open(struct broker *broker, const char *url, struct mandor_err *err)
{
    struct bullmq *mq = calloc(1, sizeof *mq);
    char *dir = NULL;
    int r;

    if (mq == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "open broker");
    mq->broker = broker;
    mq->lock_ms = BULLMQ_LOCK_MS;
    list_init(&mq->taken);
    list_init(&mq->leases);
    list_init(&mq->answers);
    list_init(&mq->recovers);
    if ((r = redis_url_parse(url, &mq->url, err)) < 0 || (r = read_settings(mq, err)) < 0)
        goto fail;
    if ((r = data_dir(&mq->url, &dir, err)) < 0)
        goto fail;
    broker_set_data_dir(broker, dir);
    if ((r = make_stem(mq)) < 0 || (r = hash_new(&mq->held)) < 0 ||
        (r = hash_new(&mq->taken_by_id)) < 0 ||
        (r = uv_prepare_init(broker_loop(broker), &mq->turn)) < 0 ||
        (r = uv_idle_init(broker_loop(broker), &mq->awake)) < 0 ||
        (r = uv_timer_init(broker_loop(broker), &mq->renew_timer)) < 0 ||
        (r = uv_timer_init(broker_loop(broker), &mq->stalled_timer)) < 0) {
        (void)err_set(err, r, FAULT_HOST, "open broker '%s'", mq->url.text);
        goto fail;
    }
    mq->turn.data = mq->awake.data = mq->renew_timer.data = mq->stalled_timer.data = mq;
    mq->open += 4;
    *(struct bullmq **)broker_state(broker) = mq;
    r = connect_all(mq, broker_is_worker(broker), err);
    if (r == 0)
        return 0;
    /* A failed open has no end that could be waited for: what was opened stays until the process goes. */
    return r;

fail:
    free_bullmq(mq);
    return r;
}

static int bullmq_check(const char *url, struct mandor_err *err)
{
    struct bullmq probe = { 0 };

    int r = redis_url_parse(url, &probe.url, err);
    if (r == 0)
        r = read_settings(&probe, err);
    free(probe.settings.prefix);
    free(probe.settings.name);
    redis_url_done(&probe.url);
    return r;
}

static int bullmq_prepare(const char *url, char **ret_data_dir, struct mandor_err *err)
{
    struct redis_url parsed;

    int r = redis_url_parse(url, &parsed, err);
    if (r == 0)
        r = data_dir(&parsed, ret_data_dir, err);
    redis_url_done(&parsed);
    return r;
}

/* Its workers hear of everything through Redis. */
static int bullmq_listen(struct broker *broker, const char *name, struct mandor_err *err)
{
    (void)broker, (void)name, (void)err;
    return 0;
}

const struct broker_ops broker_bullmq = {
    .scheme = "bullmq",
    .check = bullmq_check,
    .starts_leases = true,
    .leases_overlap = true,
    .bare_data = true,
    .takes_notes = true,
    .check_spec = bullmq_check_spec,
    .state_size = sizeof(struct bullmq *),
    .prepare = bullmq_prepare,
    .open = bullmq_open,
    .submit = bullmq_submit,
    .listen = bullmq_listen,
    .close = bullmq_close,
};
