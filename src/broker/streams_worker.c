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

/* A request on its way.  read: what the reply means, 0 or -errno with req->err; NULL = nothing. */
struct ask {
    struct streams *s;
    struct broker_req *req;
    int (*read)(struct streams *s, struct broker_req *req, const redisReply *reply);
    char nonce[STREAMS_NONCE_SIZE];
};

static struct ask *new_ask(struct streams *s, struct broker_req *req,
                           int (*read)(struct streams *s, struct broker_req *req,
                                       const redisReply *reply))
{
    struct ask *ask = calloc(1, sizeof *ask);

    if (ask == NULL) {
        (void)err_set(&req->err, -ENOMEM, FAULT_HOST, "ask '%s'", s->url.text);
        streams_answer(s, req, -ENOMEM);
        return NULL;
    }
    *ask = (struct ask){ .s = s, .req = req, .read = read };
    streams_nonce(s, ask->nonce);
    return ask;
}

static void on_reply(void *arg, int result, const redisReply *reply, const struct mandor_err *err)
{
    struct ask *ask = arg;
    struct streams *s = ask->s;

    if (result < 0) {
        /* A lease may have been carried out: the next one asks for what this one took. */
        if (ask->req->op == BROKER_LEASE && (result == -ECONNRESET || result == -ETIMEDOUT))
            memcpy(s->lost, ask->nonce, sizeof s->lost);
        streams_fail(s, ask->req, result, err);
    } else {
        int r = ask->read != NULL ? ask->read(s, ask->req, reply) : 0;
        streams_answer(s, ask->req, r);
    }
    free(ask);
}

static void call(struct ask *ask, struct redis_script *script, struct args *args)
{
    streams_eval(ask->s, script, REDIS_AGAIN, STREAMS_CALL_MS, args, on_reply, ask);
}

static void args_refs(struct args *args, const struct lease_ref *refs, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        args_s(args, refs[i].id);
        args_i(args, refs[i].attempt);
    }
}

int streams_stale(struct broker_req *req, const char *id, int64_t attempt, int64_t code)
{
    if (code != STREAMS_REFUSED)
        return err_say(&req->err, -ESTALE, FAULT_REMOTE,
                       "the server has lost that job %s attempt %" PRId64 " was started", id,
                       attempt);
    return err_say(&req->err, -ESTALE, FAULT_REMOTE,
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

static int read_leases(struct streams *s, struct broker_req *req, const redisReply *reply)
{
    size_t taken = 0;

    s->lost[0] = '\0';
    req->lease.next_due_ms = reply_int(reply_at(reply, 0));
    req->lease.drained = reply_int(reply_at(reply, 1)) == 1;
    watch(s, reply_at(reply, 2));
    for (size_t i = 3; reply_at(reply, i) != NULL && taken < req->lease.want; i++)
        if (fill_lease(reply_at(reply, i), &req->lease.leases[taken]) == 0)
            streams_forget_end(s, req->lease.leases[taken++].id);
        else
            log_error("out of memory: a leased job waits until its lease expires");
    req->lease.count = taken;
    return 0;
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
    if ((ask = new_ask(s, req, read_leases)) == NULL)
        return;
    args_s(&args, s->worker);
    args_i(&args, s->lease_ms);
    args_i(&args, (int64_t)req->lease.want);
    args_i(&args, (int64_t)req->lease.start);
    args_i(&args, (int64_t)(s->turn % 1000));
    if (s->lost[0] != '\0') /* should this answer be lost as well, one name finds what both took */
        memcpy(ask->nonce, s->lost, sizeof ask->nonce);
    args_s(&args, ask->nonce);
    args_s(&args, s->lost);
    for (size_t i = 0; i < req->lease.queue_count; i++) {
        args_s(&args, req->lease.queues[i].name);
        args_i(&args, (int64_t)MIN(req->lease.queues[i].max, req->lease.want));
        args_i(&args, (int64_t)MIN(req->lease.queues[i].start, req->lease.start));
        args_i(&args, req->lease.queues[i].attempts);
    }
    streams_eval(s, &lua_streams_lease, 0, LEASE_CALL_MS, &args, on_reply, ask);
}

/* ---- the life of an attempt ---- */

static int read_start(struct streams *s, struct broker_req *req, const redisReply *reply)
{
    int64_t attempt = reply_int(reply);

    if (attempt == STREAMS_REFUSED)
        return streams_stale(req, req->start.id, req->start.attempt, attempt);
    req->start.cancelled = attempt == -1;
    if (!req->start.cancelled)
        req->start.attempt = attempt;
    return 0;
}

void streams_start(struct streams *s, struct broker_req *req)
{
    struct args args = { .count = 0 };
    struct ask *ask = new_ask(s, req, read_start);

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
    call(ask, &lua_streams_start, &args);
}

static int read_renewal(struct streams *s, struct broker_req *req, const redisReply *reply)
{
    req->renew.left_ms = s->lease_ms;
    for (size_t i = 0; i < req->renew.count; i++) {
        int64_t flag = reply_int(reply_at(reply, i));
        req->renew.flags[i] = flag == 1 || flag == 3 ? RENEW_LOST : flag == 2 ? RENEW_CANCEL : 0;
        if (flag == 3)
            log_event(LOG_WARN, req->renew.refs[i].id, req->renew.refs[i].attempt,
                      "'%s' has lost that this attempt was started: a restart, or a failover, "
                      "without its last writes",
                      s->url.text);
    }
    return 0;
}

void streams_renew(struct streams *s, struct broker_req *req)
{
    struct args args = { .count = 0 };
    struct ask *ask = new_ask(s, req, read_renewal);

    if (ask == NULL)
        return;
    args_s(&args, s->worker);
    args_i(&args, s->lease_ms);
    args_refs(&args, req->renew.refs, req->renew.count);
    /* A renewal that comes late is worth nothing: the worker asks again with what it holds then. */
    streams_eval(s, &lua_streams_renew, REDIS_AGAIN, MIN(s->lease_ms / 6, (int64_t)STREAMS_CALL_MS),
                 &args, on_reply, ask);
}

static int read_begin(struct streams *s, struct broker_req *req, const redisReply *reply)
{
    int64_t flag = reply_int(reply_at(reply, 0));

    req->begin_settle.left_ms = s->lease_ms;
    return flag == 1 || flag == 3
               ? streams_stale(req, req->begin_settle.id, req->begin_settle.attempt,
                               flag == 3 ? STREAMS_UNDONE : STREAMS_REFUSED)
               : 0;
}

void streams_begin_settle(struct streams *s, struct broker_req *req)
{
    struct args args = { .count = 0 };
    struct ask *ask = new_ask(s, req, read_begin);

    if (ask == NULL)
        return;
    args_s(&args, s->worker);
    args_i(&args, s->lease_ms);
    args_s(&args, req->begin_settle.id);
    args_i(&args, req->begin_settle.attempt);
    call(ask, &lua_streams_renew, &args);
}

void streams_give_back(struct streams *s, struct broker_req *req)
{
    struct args args = { .count = 0 };
    struct ask *ask = new_ask(s, req, NULL);

    if (ask == NULL)
        return;
    args_s(&args, s->worker);
    args_refs(&args, req->give_back.refs, req->give_back.count);
    call(ask, &lua_streams_give_back, &args);
}

static int read_phase(struct streams *s, struct broker_req *req, const redisReply *reply)
{
    return reply_int(reply) != 0
               ? streams_stale(req, req->phase.id, req->phase.attempt, STREAMS_REFUSED)
               : 0;
}

void streams_phase(struct streams *s, struct broker_req *req)
{
    struct args args = { .count = 0 };
    struct ask *ask = new_ask(s, req, read_phase);

    if (ask == NULL)
        return;
    args_s(&args, s->worker);
    args_s(&args, req->phase.id);
    args_i(&args, req->phase.attempt);
    args_s(&args, req->phase.phase);
    args_s(&args, req->phase.containment);
    call(ask, &lua_streams_phase, &args);
}

/* ---- coming and going ---- */

static int read_register(struct streams *s, struct broker_req *req, const redisReply *reply)
{
    int version = redis_version(s->redis);

    if (version > 0 && version < VERSION_MIN)
        return err_set(&req->err, -EPROTO, FAULT_REMOTE,
                       "'%s' is %s, expected Redis 6.2 or newer, or Valkey", s->url.text,
                       redis_software(s->redis));
    (void)snprintf(s->worker, sizeof s->worker, "%s", req->reg.worker);
    return 0;
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
    if ((ask = new_ask(s, req, read_register)) == NULL)
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
    streams_eval(s, &lua_streams_register, REDIS_AGAIN,
                 req->reg.wait_ms > 0 ? req->reg.wait_ms : STREAMS_CALL_MS, &args, on_reply, ask);
}

void streams_unregister(struct streams *s, struct broker_req *req)
{
    struct args args = { .count = 0 };
    struct ask *ask;

    if (s->worker[0] == '\0') {
        streams_answer(s, req, 0);
        return;
    }
    if ((ask = new_ask(s, req, NULL)) == NULL)
        return;
    args_s(&args, s->worker);
    args_s(&args, "forget");
    args_s(&args, s->lost);
    call(ask, &lua_streams_held, &args);
}
