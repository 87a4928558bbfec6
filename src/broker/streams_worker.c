/* streams_worker.c - the requests of a worker on streams://: what each script is given, and what its reply means. */
#include <stdio.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/log.h"
#include "broker/lua_scripts.h"
#include "broker/store.h"
#include "broker/streams.h"

#define LEASE_CALL_MS 5000
#define VERSION_MIN   60200 /* XAUTOCLAIM, ZRANGESTORE: Redis 6.2 */

struct ask {
    struct streams *s;
    struct broker_req *req;
    char nonce[STREAMS_NONCE_SIZE];
};

static struct ask *new_ask(struct streams *s, struct broker_req *req)
{
    struct ask *ask = calloc(1, sizeof *ask);

    if (ask == NULL) {
        (void)err_set(&req->err, -ENOMEM, FAULT_HOST, "ask '%s'", s->url.text);
        streams_answer(s, req, -ENOMEM);
        return NULL;
    }
    ask->s = s;
    ask->req = req;
    streams_nonce(s, ask->nonce);
    return ask;
}

static int stale(struct broker_req *req, const char *id, int64_t attempt)
{
    return err_set(&req->err, -ESTALE, FAULT_REMOTE,
                   "job %s attempt %" PRId64 " is not held by this worker", id, attempt);
}

/* ---- lease ---- */

static int fill_lease(const redisReply *row, struct lease *ret)
{
    *ret = (struct lease){ .id = strdup(reply_text(reply_at(row, 0))),
                           .queue = strdup(reply_text(reply_at(row, 1))),
                           .spec_text = strdup(reply_text(reply_at(row, 2))),
                           .attempt = reply_int(reply_at(row, 3)),
                           .attempts_used = reply_int(reply_at(row, 4)),
                           .put_backs = reply_int(reply_at(row, 5)),
                           .created_ms = reply_int(reply_at(row, 6)),
                           .started = reply_int(reply_at(row, 7)) == 1 };
    if (ret->id != NULL && ret->queue != NULL && ret->spec_text != NULL)
        return 0;
    lease_done(ret);
    return -ENOMEM;
}

static bool same_queues(const struct streams *s, const redisReply *names)
{
    size_t count = 0;

    for (; s->queues != NULL && s->queues[count] != NULL; count++)
        if (!str_eq(s->queues[count], reply_text(reply_at(names, count))))
            return false;
    return count == names->elements;
}

/* The streams to wait for; from the next XREAD on. */
static void watch(struct streams *s, const redisReply *names)
{
    if (names == NULL || names->type != REDIS_REPLY_ARRAY || same_queues(s, names))
        return;
    char **queues = calloc(names->elements + 1, sizeof *queues);
    for (size_t i = 0; queues != NULL && i < names->elements; i++)
        if ((queues[i] = strdup(reply_text(names->element[i]))) == NULL)
            break;
    for (size_t i = 0; s->queues != NULL && s->queues[i] != NULL; i++)
        free(s->queues[i]);
    free(s->queues);
    s->queues = queues;
}

static void on_leased(void *arg, int result, const redisReply *reply, const struct mandor_err *err)
{
    struct ask *ask = arg;
    struct streams *s = ask->s;
    struct broker_req *req = ask->req;
    size_t taken = 0;

    if (result < 0) {
        /* It may have been carried out: the next lease asks for what this one took. */
        if (s->lost[0] == '\0' && (result == -ECONNRESET || result == -ETIMEDOUT))
            memcpy(s->lost, ask->nonce, sizeof s->lost);
        free(ask);
        streams_fail(s, req, result, err);
        return;
    }
    free(ask);
    s->lost[0] = '\0';
    req->lease.next_due_ms = reply_int(reply_at(reply, 0));
    req->lease.drained = reply_int(reply_at(reply, 1)) == 1;
    watch(s, reply_at(reply, 2));
    for (size_t i = 3; reply_at(reply, i) != NULL && taken < req->lease.want; i++)
        if (fill_lease(reply_at(reply, i), &req->lease.leases[taken]) == 0)
            taken++;
        else
            log_error("out of memory: a leased job waits until its lease expires");
    req->lease.count = taken;
    streams_answer(s, req, 0);
}

void streams_lease(struct streams *s, struct broker_req *req)
{
    struct args args = { .count = 0 };
    struct ask *ask;

    req->lease.count = 0;
    req->lease.next_due_ms = -1;
    req->lease.drained = false;
    if (s->worker[0] == '\0') {
        (void)err_set(&req->err, -EINVAL, FAULT_BUG, "lease before register");
        streams_answer(s, req, -EINVAL);
        return;
    }
    if ((ask = new_ask(s, req)) == NULL)
        return;
    args_s(&args, s->worker);
    args_i(&args, s->lease_ms);
    args_i(&args, (int64_t)req->lease.want);
    args_i(&args, (int64_t)req->lease.start);
    args_i(&args, (int64_t)(s->turn % 1000));
    args_s(&args, ask->nonce);
    args_s(&args, s->lost);
    for (size_t i = 0; i < req->lease.queue_count; i++) {
        args_s(&args, req->lease.queues[i].name);
        args_i(&args, (int64_t)MIN(req->lease.queues[i].max, req->lease.want));
        args_i(&args, (int64_t)MIN(req->lease.queues[i].start, req->lease.start));
        args_i(&args, req->lease.queues[i].attempts);
    }
    streams_eval(s, &lua_streams_lease, 0, LEASE_CALL_MS, &args, on_leased, ask);
}

/* ---- the life of an attempt ---- */

static void on_started(void *arg, int result, const redisReply *reply, const struct mandor_err *err)
{
    struct ask *ask = arg;
    struct broker_req *req = ask->req;
    struct streams *s = ask->s;
    int64_t attempt = reply_int(reply);

    free(ask);
    if (result < 0) {
        streams_fail(s, req, result, err);
    } else if (attempt == STREAMS_REFUSED) {
        streams_answer(s, req, stale(req, req->start.id, req->start.attempt));
    } else {
        req->start.cancelled = attempt == -1;
        if (!req->start.cancelled)
            req->start.attempt = attempt;
        streams_answer(s, req, 0);
    }
}

void streams_start(struct streams *s, struct broker_req *req)
{
    struct args args = { .count = 0 };
    struct ask *ask = new_ask(s, req);

    if (ask == NULL)
        return;
    req->start.cancelled = false;
    args_s(&args, s->worker);
    args_i(&args, s->lease_ms);
    args_s(&args, req->start.id);
    args_i(&args, req->start.attempt);
    args_i(&args, req->start.attempts);
    args_i(&args, clock_wall_ms());
    args_s(&args, ask->nonce);
    streams_eval(s, &lua_streams_start, REDIS_AGAIN, STREAMS_CALL_MS, &args, on_started, ask);
}

static void on_renewed(void *arg, int result, const redisReply *reply, const struct mandor_err *err)
{
    struct ask *ask = arg;
    struct broker_req *req = ask->req;
    struct streams *s = ask->s;

    free(ask);
    if (result < 0) {
        streams_fail(s, req, result, err);
        return;
    }
    req->renew.left_ms = s->lease_ms;
    for (size_t i = 0; i < req->renew.count; i++) {
        int64_t flag = reply_int(reply_at(reply, i));
        req->renew.flags[i] = flag == 1 ? RENEW_LOST : flag == 2 ? RENEW_CANCEL : 0;
    }
    streams_answer(s, req, 0);
}

void streams_renew(struct streams *s, struct broker_req *req)
{
    struct args args = { .count = 0 };
    struct ask *ask = new_ask(s, req);

    if (ask == NULL)
        return;
    args_s(&args, s->worker);
    args_i(&args, s->lease_ms);
    for (size_t i = 0; i < req->renew.count; i++) {
        args_s(&args, req->renew.refs[i].id);
        args_i(&args, req->renew.refs[i].attempt);
    }
    /* A renewal that comes late is worth nothing: the worker asks again with what it holds then. */
    streams_eval(s, &lua_streams_renew, REDIS_AGAIN, MIN(s->lease_ms / 6, (int64_t)STREAMS_CALL_MS),
                 &args, on_renewed, ask);
}

static void on_begun(void *arg, int result, const redisReply *reply, const struct mandor_err *err)
{
    struct ask *ask = arg;
    struct broker_req *req = ask->req;
    struct streams *s = ask->s;

    free(ask);
    req->begin_settle.left_ms = s->lease_ms;
    if (result < 0)
        streams_fail(s, req, result, err);
    else if (reply_int(reply_at(reply, 0)) == 1)
        streams_answer(s, req, stale(req, req->begin_settle.id, req->begin_settle.attempt));
    else
        streams_answer(s, req, 0);
}

void streams_begin_settle(struct streams *s, struct broker_req *req)
{
    struct args args = { .count = 0 };
    struct ask *ask = new_ask(s, req);

    if (ask == NULL)
        return;
    args_s(&args, s->worker);
    args_i(&args, s->lease_ms);
    args_s(&args, req->begin_settle.id);
    args_i(&args, req->begin_settle.attempt);
    streams_eval(s, &lua_streams_renew, REDIS_AGAIN, STREAMS_CALL_MS, &args, on_begun, ask);
}

static void on_settled(void *arg, int result, const redisReply *reply, const struct mandor_err *err)
{
    struct ask *ask = arg;
    struct broker_req *req = ask->req;
    struct streams *s = ask->s;

    free(ask);
    if (result < 0)
        streams_fail(s, req, result, err);
    else if (reply_int(reply) != 0)
        streams_answer(s, req, stale(req, req->settle.id, req->settle.attempt));
    else
        streams_answer(s, req, 0);
}

void streams_settle(struct streams *s, struct broker_req *req)
{
    struct args args = { .count = 0 };
    struct ask *ask = new_ask(s, req);

    if (ask == NULL)
        return;
    args_s(&args, s->worker);
    args_s(&args, req->settle.id);
    args_i(&args, req->settle.attempt);
    args_s(&args, job_state_name(req->settle.plan.state));
    args_i(&args, req->settle.plan.charged);
    args_i(&args, req->settle.plan.delay_ms);
    args_i(&args, req->settle.started_ms);
    args_i(&args, req->settle.finished_ms > 0 ? req->settle.finished_ms : clock_wall_ms());
    args_s(&args, req->settle.record);
    args_i(&args, req->settle.keep_ms);
    args_i(&args, req->settle.keep_count);
    args_s(&args, req->settle.queue);
    args_b(&args, req->settle.out, req->settle.out_len);
    args_b(&args, req->settle.errout, req->settle.errout_len);
    streams_eval(s, &lua_streams_settle, REDIS_AGAIN, STREAMS_CALL_MS, &args, on_settled, ask);
}

/* ---- requests whose reply says nothing ---- */

static void on_done(void *arg, int result, const redisReply *reply, const struct mandor_err *err)
{
    struct ask *ask = arg;
    struct broker_req *req = ask->req;
    struct streams *s = ask->s;

    free(ask);
    if (result < 0)
        streams_fail(s, req, result, err);
    else if (req->op == BROKER_PHASE && reply_int(reply) != 0)
        streams_answer(s, req, stale(req, req->phase.id, req->phase.attempt));
    else
        streams_answer(s, req, 0);
}

void streams_give_back(struct streams *s, struct broker_req *req)
{
    struct args args = { .count = 0 };
    struct ask *ask = new_ask(s, req);

    if (ask == NULL)
        return;
    args_s(&args, s->worker);
    for (size_t i = 0; i < req->give_back.count; i++) {
        args_s(&args, req->give_back.refs[i].id);
        args_i(&args, req->give_back.refs[i].attempt);
    }
    streams_eval(s, &lua_streams_give_back, REDIS_AGAIN, STREAMS_CALL_MS, &args, on_done, ask);
}

void streams_phase(struct streams *s, struct broker_req *req)
{
    struct args args = { .count = 0 };
    struct ask *ask = new_ask(s, req);

    if (ask == NULL)
        return;
    args_s(&args, s->worker);
    args_s(&args, req->phase.id);
    args_i(&args, req->phase.attempt);
    args_s(&args, req->phase.phase);
    args_s(&args, req->phase.containment);
    streams_eval(s, &lua_streams_phase, REDIS_AGAIN, STREAMS_CALL_MS, &args, on_done, ask);
}

/* ---- coming and going ---- */

static void on_registered(void *arg, int result, const redisReply *reply,
                          const struct mandor_err *err)
{
    struct ask *ask = arg;
    struct broker_req *req = ask->req;
    struct streams *s = ask->s;
    int version = redis_version(s->redis);

    (void)reply;
    free(ask);
    if (result < 0) {
        streams_fail(s, req, result, err);
    } else if (version > 0 && version < VERSION_MIN) {
        (void)err_set(&req->err, -EPROTO, FAULT_REMOTE,
                      "'%s' is Redis %d.%d, expected 6.2 or newer, or Valkey", s->url.text,
                      version / 10000, version / 100 % 100);
        streams_answer(s, req, -EPROTO);
    } else {
        (void)snprintf(s->worker, sizeof s->worker, "%s", req->reg.worker);
        streams_answer(s, req, 0);
    }
}

void streams_place(const char *lock_path, char place[static STREAMS_PLACE_SIZE])
{
    const char *slash = lock_path != NULL ? strrchr(lock_path, '/') : NULL;
    SCOPED_FREE char *dir =
        slash != NULL ? strndup(lock_path, MAX((size_t)(slash - lock_path), (size_t)1)) : NULL;
    struct stat st = { 0 };

    if (dir == NULL || stat(dir, &st) < 0)
        st = (struct stat){ 0 };
    (void)snprintf(place, STREAMS_PLACE_SIZE, "%s/%" PRIx64 ":%" PRIu64, store_boot_id(),
                   (uint64_t)st.st_dev, (uint64_t)st.st_ino);
}

void streams_register(struct streams *s, struct broker_req *req)
{
    struct args args = { .count = 0 };
    char place[STREAMS_PLACE_SIZE];
    struct ask *ask;

    if (strlen(req->reg.worker) >= sizeof s->worker || req->reg.worker[0] == '\0') {
        int r =
            err_set(&req->err, -EINVAL, FAULT_CALLER, "worker name '%s' must have 1 to %zu bytes",
                    req->reg.worker, sizeof s->worker - 1);
        streams_answer(s, req, r);
        return;
    }
    if ((ask = new_ask(s, req)) == NULL)
        return;
    s->lease_ms = req->reg.lease_ms > 0 ? req->reg.lease_ms : STORE_LEASE_MS;
    args_s(&args, req->reg.worker);
    args_i(&args, s->lease_ms);
    args_s(&args, s->host);
    streams_place(req->reg.lock_path, place);
    args_copy(&args, place);
    args_s(&args, req->reg.lock_path);
    args_s(&args, req->reg.containment);
    args_s(&args, req->reg.queues != NULL ? req->reg.queues : "[]");
    args_i(&args, clock_wall_ms());
    args_i(&args, getpid());
    streams_eval(s, &lua_streams_register, REDIS_AGAIN, STREAMS_CALL_MS, &args, on_registered, ask);
}

void streams_unregister(struct streams *s, struct broker_req *req)
{
    struct args args = { .count = 0 };
    struct ask *ask;

    if (s->worker[0] == '\0') {
        streams_answer(s, req, 0);
        return;
    }
    if ((ask = new_ask(s, req)) == NULL)
        return;
    args_s(&args, s->worker);
    args_s(&args, "forget");
    streams_eval(s, &lua_streams_held, REDIS_AGAIN, STREAMS_CALL_MS, &args, on_done, ask);
}
