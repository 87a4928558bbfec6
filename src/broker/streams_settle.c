/* streams_settle.c - the ends of attempts on streams://: what one turn of the loop has submitted goes in one call of streams_settle.lua.
 *
 * Whatever else is submitted meanwhile goes behind them.
 *
 * A server that is killed, or replaced by a replica that was behind, loses what it has acknowledged last.  The ends of the last minute are kept here,
 * and written again when a connection is made anew: settling twice is settling once, so only what is missing is written. */
#include <stdio.h>

#include "base/clock.h"
#include "base/log.h"
#include "broker/lua_scripts.h"
#include "broker/streams.h"

#define BATCH_MAX       64
#define TAKEN_MS        60000
#define TAKEN_BYTES_MAX ((size_t)4 << 20)

struct batch {
    struct streams *s;
    size_t count;
    struct broker_req *reqs[BATCH_MAX];
};

/* An end that the server has taken, with the arguments that wrote it. */
struct taken {
    struct list node;
    int64_t at_ms; /* monotonic */
    char id[24];
    int64_t attempt;
    struct args args;
};

static void add_end(struct args *args, const struct broker_req *req)
{
    args_s(args, req->settle.id);
    args_i(args, req->settle.attempt);
    args_s(args, job_state_name(req->settle.plan.state));
    args_i(args, req->settle.plan.charged);
    args_i(args, req->settle.plan.delay_ms);
    args_i(args, req->settle.started_ms);
    args_i(args, req->settle.finished_ms > 0 ? req->settle.finished_ms : clock_wall_ms());
    args_s(args, req->settle.record);
    args_i(args, req->settle.keep_ms);
    args_i(args, req->settle.keep_count);
    args_s(args, req->settle.queue);
    args_b(args, req->settle.out, req->settle.out_len);
    args_b(args, req->settle.errout, req->settle.errout_len);
}

/* ---- what the server took lately ---- */

static size_t size_of(const struct taken *taken)
{
    return sizeof *taken + taken->args.cap * sizeof *taken->args.list + taken->args.text.len;
}

static void forget(struct streams *s, struct taken *taken)
{
    s->taken_bytes -= size_of(taken);
    (void)hash_takes(s->taken_by_id, taken->id);
    list_remove(&taken->node);
    args_done(&taken->args);
    free(taken);
}

void streams_forget_end(struct streams *s, const char *id)
{
    struct taken *taken = hash_gets(s->taken_by_id, id);

    if (taken != NULL)
        forget(s, taken);
}

void streams_forget_ends(struct streams *s)
{
    while (!list_empty(&s->taken))
        forget(s, LIST_ENTRY(s->taken.next, struct taken, node));
}

static void forget_old(struct streams *s)
{
    while (!list_empty(&s->taken)) {
        struct taken *oldest = LIST_ENTRY(s->taken.next, struct taken, node);
        if (s->taken_bytes <= TAKEN_BYTES_MAX && clock_mono_ms() - oldest->at_ms < TAKEN_MS)
            return;
        forget(s, oldest);
    }
}

/* Without memory it is not kept. */
static void keep(struct streams *s, const struct broker_req *req)
{
    struct taken *taken = calloc(1, sizeof *taken);

    streams_forget_end(s, req->settle.id);
    if (taken == NULL)
        return;
    *taken = (struct taken){ .at_ms = clock_mono_ms(), .attempt = req->settle.attempt };
    (void)snprintf(taken->id, sizeof taken->id, "%s", req->settle.id);
    add_end(&taken->args, req);
    args_own(&taken->args);
    list_push_back(&s->taken, &taken->node);
    s->taken_bytes += size_of(taken);
    if (hash_puts(s->taken_by_id, taken->id, taken) < 0 || taken->args.failed)
        forget(s, taken);
    forget_old(s);
}

struct again {
    struct streams *s;
    size_t count;
    struct {
        char id[24];
        int64_t attempt;
    } ends[BATCH_MAX];
};

static void on_again(void *arg, int result, const redisReply *reply, const struct mandor_err *err)
{
    struct again *again = arg;
    struct streams *s = again->s;

    for (size_t i = 0; result == 0 && i < again->count; i++) {
        int64_t code = reply_int(reply_at(reply, i));
        if (code == 0)
            log_event(
                LOG_WARN, again->ends[i].id, again->ends[i].attempt,
                "'%s' had lost the end of this attempt (a restart, or a failover, without its "
                "last writes): it is written again",
                s->url.text);
        else if (code == STREAMS_UNDONE)
            log_event(
                LOG_WARN, again->ends[i].id, again->ends[i].attempt,
                "'%s' has lost that there was this attempt (a restart, or a failover, without "
                "its last writes): the job runs again",
                s->url.text);
    }
    if (result < 0) /* a lost connection: the next one has them as well */
        log_debug("broker", "look for lost ends: %s", err->msg);
    free(again);
    streams_part_done(s);
}

void streams_settle_again(struct streams *s)
{
    forget_old(s);
    for (struct list *node = s->taken.next; node != &s->taken;) {
        struct again *again = calloc(1, sizeof *again);
        struct args args = { .count = 0 };
        if (again == NULL)
            return;
        again->s = s;
        args_s(&args, s->worker);
        for (; node != &s->taken && again->count < BATCH_MAX; node = node->next) {
            const struct taken *taken = LIST_ENTRY(node, struct taken, node);
            (void)snprintf(again->ends[again->count].id, sizeof again->ends->id, "%s", taken->id);
            again->ends[again->count++].attempt = taken->attempt;
            args_again(&args, &taken->args);
        }
        s->outstanding++;
        streams_eval(s, &lua_streams_settle, REDIS_FIRST, STREAMS_CALL_MS, &args, on_again, again);
    }
}

/* ---- sending ---- */

static void send_batch(struct streams *s, struct broker_req *const *reqs, size_t count);

static void settled(struct streams *s, struct broker_req *req, int64_t code)
{
    if (code < 0) {
        streams_answer(s, req, streams_stale(req, req->settle.id, req->settle.attempt, code));
        return;
    }
    keep(s, req);
    streams_answer(s, req, 0);
}

/* What failed because of one of several is tried with each alone; settling twice is settling once. */
static void on_settled(void *arg, int result, const redisReply *reply, const struct mandor_err *err)
{
    struct batch *batch = arg;
    struct streams *s = batch->s;
    bool apart =
        result < 0 && result != -ECANCELED && batch->count > 1 && !redis_is_transient(result);

    for (size_t i = 0; i < batch->count; i++) {
        struct broker_req *req = batch->reqs[i];
        if (apart)
            send_batch(s, &req, 1);
        else if (result < 0)
            streams_fail(s, req, result, err);
        else
            settled(s, req, reply_int(reply_at(reply, i)));
    }
    free(batch);
}

static void send_batch(struct streams *s, struct broker_req *const *reqs, size_t count)
{
    struct args args = { .count = 0 };
    struct batch *batch = calloc(1, sizeof *batch);

    if (batch == NULL) {
        struct mandor_err err;
        int r = err_set(&err, -ENOMEM, FAULT_HOST, "ask '%s'", s->url.text);
        for (size_t i = 0; i < count; i++)
            streams_fail(s, reqs[i], r, &err);
        return;
    }
    *batch = (struct batch){ .s = s, .count = count };
    memcpy(batch->reqs, reqs, count * sizeof(struct broker_req *));
    args_s(&args, s->worker);
    for (size_t i = 0; i < count; i++)
        add_end(&args, reqs[i]);
    streams_eval(s, &lua_streams_settle, REDIS_AGAIN, STREAMS_CALL_MS, &args, on_settled, batch);
}

void streams_send_ends(struct streams *s)
{
    struct broker_req *reqs[BATCH_MAX];

    (void)uv_idle_stop(&s->turn_over);
    while (!list_empty(&s->ends)) {
        size_t count = 0;
        while (count < BATCH_MAX && !list_empty(&s->ends))
            reqs[count++] = LIST_ENTRY(list_pop_front(&s->ends), struct broker_req, node);
        send_batch(s, reqs, count);
    }
}

static void on_turn_over(uv_idle_t *idle)
{
    streams_send_ends(idle->data);
}

void streams_settle(struct streams *s, struct broker_req *req)
{
    list_push_back(&s->ends, &req->node);
    (void)uv_idle_start(&s->turn_over, on_turn_over);
}
