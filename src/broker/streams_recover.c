/* streams_recover.c - what goes wrong with workers: jobs of the dead are put through their verdict.
 *
 *   tick (Lua) ─▶ who is registered, whose lease is over ─▶ pool thread: locks of workers of this machine, their containments emptied
 *        ─▶ jobs of the dead (Lua) ─▶ plan ─▶ settle (Lua, fenced by the dead worker's name and its attempt)
 *
 * A worker of this machine is dead when its liveness lock is free, and its jobs are taken when its containment is empty.  One of another machine is dead to us
 * when its lease is over by the server's clock: it ends its trees before that by its own.  A worker of this machine that lives keeps its jobs even then
 * (it may be stopped, and its trees with it). */
#include <stdio.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "broker/data_dir.h"
#include "broker/lua_scripts.h"
#include "broker/streams.h"
#include "loop/work.h"

#define TAKEOVER_GRACE_MS 2000
#define FORGET_MS         INT64_C(3600000) /* a worker of another machine stays on the list that long */
#define SELF_GRACE_MS     60000 /* what we settle late is ours to settle; what we forgot is not */

struct peer {
    char name[64], lock[PATH_MAX], place[STREAMS_PLACE_SIZE], *base;
    bool local, alive, emptied;
    int64_t gone_ms; /* since its last sign of life stopped to count */
    int fd;          /* of its lock, when it is dead */
};

struct recovery {
    struct streams *s;
    struct broker_req *req;
    struct work work;
    struct peer *peers;
    size_t peer_count, peer_at;
    struct lost_job {
        char id[24], worker[64], *spec;
        int64_t attempt, attempts_used, put_backs, started_ms, attempts, over_ms;
        bool started;
    } * jobs;
    size_t job_count;
    size_t pending; /* scripts without an answer, and one while they are being sent */
    struct mandor_err err;
    int status;
};

/* ---- the end ---- */

static void free_jobs(struct recovery *rec)
{
    for (size_t i = 0; i < rec->job_count; i++)
        free(rec->jobs[i].spec);
    free(STEAL(rec->jobs));
    rec->job_count = 0;
}

static void finish(struct recovery *rec)
{
    struct streams *s = rec->s;
    struct broker_req *req = rec->req;
    int status = rec->status;

    for (size_t i = 0; i < rec->peer_count; i++) {
        if (rec->peers[i].fd >= 0)
            (void)close(rec->peers[i].fd);
        free(rec->peers[i].base);
    }
    free(rec->peers);
    free_jobs(rec);
    if (status < 0)
        req->err = rec->err;
    free(rec);
    if (status == 0)
        streams_sweep(s);
    streams_answer(s, req, status);
}

static void note_failure(struct recovery *rec, int result, const struct mandor_err *err)
{
    if (rec->status < 0)
        return;
    rec->status = result;
    rec->err = *err;
}

/* ---- settling a lost job ---- */

static struct retry_plan plan(const struct lost_job *job, const struct verdict *verdict)
{
    SCOPED_JSON *json = NULL;
    SCOPED(spec_free) struct spec *spec = NULL;
    struct retry_plan fallback = { .state = JOB_FAILED, .charged = true };

    if (json_parse(job->spec, strlen(job->spec), &json, NULL) < 0 ||
        spec_from_json(json, NULL, &spec, NULL) < 0) {
        /* another producer's data: its options are the worker's to say, so it is as one that has none */
        if (job->attempts_used + 1 < job->attempts)
            fallback =
                (struct retry_plan){ .state = JOB_DELAYED, .charged = true, .delay_ms = 1000 };
        return fallback;
    }
    spec->attempts = MAX(job->attempts, (int64_t)1);
    return retry_plan(verdict_outcome(verdict, spec), spec, job->attempts_used, job->put_backs,
                      (double)(clock_mono_ns() % 1000) / 1000.0);
}

static void next(struct recovery *rec);

static void over(struct recovery *rec)
{
    if (--rec->pending == 0)
        next(rec);
}

static void on_ended(void *arg, int result, const redisReply *reply, const struct mandor_err *err)
{
    struct recovery *rec = arg;

    if (result < 0)
        note_failure(rec, result, err);
    else if (reply_int(reply_at(reply, 0)) == 0)
        rec->req->recover.recovered++; /* else somebody else was faster */
    over(rec);
}

static void end_started(struct recovery *rec, const struct lost_job *job)
{
    struct verdict verdict = { .cause = CAUSE_WORKER_DIED, .exit_code = -1 };
    struct args args = { .count = 0 };
    SCOPED_BUF text = { 0 };

    const char *why =
        str_eq(job->worker, rec->s->worker)
            ? "worker '%s' does not run this attempt, and the server has not its end: "
              "it was restarted, or replaced, without its last writes"
        : job->over_ms >= 0 ? "worker '%s' let its lease run out while it ran this attempt"
                            : "worker '%s' died while it ran this attempt";
    (void)snprintf(verdict.error, sizeof verdict.error, why, job->worker);
    struct retry_plan after = plan(job, &verdict);
    if (record_attempt_text(&(struct record_attempt){ .verdict = &verdict }, &text) < 0)
        buf_clear(&text);
    args_copy(&args, job->worker);
    args_copy(&args, job->id);
    args_i(&args, job->attempt);
    args_s(&args, job_state_name(after.state));
    args_i(&args, after.charged);
    args_i(&args, after.delay_ms);
    args_i(&args, job->started_ms);
    args_i(&args, clock_wall_ms());
    args_copy(&args, text.data != NULL ? text.data : "");
    args_i(&args, 0);
    args_i(&args, 0);
    args_s(&args, "");
    args_s(&args, "");
    args_s(&args, "");
    rec->pending++;
    streams_eval(rec->s, &lua_streams_settle, REDIS_AGAIN, STREAMS_CALL_MS, &args, on_ended, rec);
}

static void on_back(void *arg, int result, const redisReply *reply, const struct mandor_err *err)
{
    struct recovery *rec = arg;

    if (result < 0)
        note_failure(rec, result, err);
    else
        rec->req->recover.recovered += (size_t)reply_int(reply);
    over(rec);
}

static void give_back_unstarted(struct recovery *rec, const struct lost_job *job)
{
    struct args args = { .count = 0 };

    args_copy(&args, job->worker);
    args_copy(&args, job->id);
    args_i(&args, job->attempt);
    rec->pending++;
    streams_eval(rec->s, &lua_streams_give_back, REDIS_AGAIN, STREAMS_CALL_MS, &args, on_back, rec);
}

static void end_job(struct recovery *rec, const struct lost_job *job)
{
    if (job->started)
        end_started(rec, job);
    else
        give_back_unstarted(rec, job);
}

/* ---- rows ---- */

/* {id, attempt, started, cancel requested, used, put backs, started at, spec, attempts, queue[, worker, over for]} */
static int read_jobs(struct recovery *rec, const redisReply *rows, const char *worker)
{
    free_jobs(rec);
    if (rows == NULL || rows->type != REDIS_REPLY_ARRAY || rows->elements == 0)
        return 0;
    rec->jobs = calloc(rows->elements, sizeof *rec->jobs);
    if (rec->jobs == NULL)
        return -ENOMEM;
    for (; rec->job_count < rows->elements; rec->job_count++) {
        const redisReply *row = rows->element[rec->job_count];
        struct lost_job *job = &rec->jobs[rec->job_count];
        (void)snprintf(job->id, sizeof job->id, "%s", reply_text(reply_at(row, 0)));
        (void)snprintf(job->worker, sizeof job->worker, "%s",
                       worker != NULL ? worker : reply_text(reply_at(row, 10)));
        job->attempt = reply_int(reply_at(row, 1));
        job->started = reply_int(reply_at(row, 2)) == 1;
        job->attempts_used = reply_int(reply_at(row, 4));
        job->put_backs = reply_int(reply_at(row, 5));
        job->started_ms = reply_int(reply_at(row, 6));
        job->spec = strdup(reply_text(reply_at(row, 7)));
        job->attempts = reply_int(reply_at(row, 8));
        job->over_ms = worker != NULL ? -1 : reply_int(reply_at(row, 11));
        if (job->spec == NULL)
            return -ENOMEM;
    }
    return 0;
}

static int read_peers(struct recovery *rec, const redisReply *rows)
{
    size_t count = rows != NULL && rows->type == REDIS_REPLY_ARRAY ? rows->elements : 0;

    rec->peers = calloc(count + 1, sizeof *rec->peers);
    if (rec->peers == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < count; i++) {
        const redisReply *row = rows->element[i];
        struct peer *peer = &rec->peers[rec->peer_count];
        const char *name = reply_text(reply_at(row, 0));
        if (str_eq(name, rec->s->worker))
            continue;
        *peer = (struct peer){ .fd = -1, .base = strdup(reply_text(reply_at(row, 4))) };
        rec->peer_count++;
        if (peer->base == NULL)
            return -ENOMEM;
        (void)snprintf(peer->name, sizeof peer->name, "%s", name);
        (void)snprintf(peer->lock, sizeof peer->lock, "%s", reply_text(reply_at(row, 3)));
        peer->local = str_eq(reply_text(reply_at(row, 1)), rec->s->host); /* and, on the thread: */
        (void)snprintf(peer->place, sizeof peer->place, "%s", reply_text(reply_at(row, 2)));
        peer->alive = reply_int(reply_at(row, 8)) == 1;
        peer->gone_ms = reply_int(reply_at(row, 9));
    }
    return 0;
}

/* ---- workers of this machine, one after the other ---- */

/* On a pool thread: locks, containments. */
static void look_at_peers(struct work *work)
{
    struct recovery *rec = CONTAINER_OF(work, struct recovery, work);

    for (size_t i = 0; i < rec->peer_count; i++) {
        struct peer *peer = &rec->peers[i];
        char place[STREAMS_PLACE_SIZE] = "";
        if (peer->local)
            streams_place(peer->lock, place);
        peer->local = peer->local && str_eq(place, peer->place);
        if (!peer->local)
            continue;
        peer->alive = data_dir_worker_alive(peer->lock, &peer->fd) == 1;
        peer->emptied = !peer->alive && rec->req->recover.empty != NULL &&
                        rec->req->recover.empty(peer->base, rec->req->recover.arg) == 0;
    }
    /* What died before it had registered. */
    (void)data_dir_sweep(broker_data_dir(rec->s->broker), rec->s->worker, NULL, NULL,
                         rec->req->recover.empty, rec->req->recover.arg);
}

static void on_forgotten(void *arg, int result, const redisReply *reply,
                         const struct mandor_err *err)
{
    struct recovery *rec = arg;

    if (result < 0)
        note_failure(rec, result, err);
    else
        rec->req->recover.recovered += (size_t)reply_int(reply_at(reply, 0));
    over(rec);
}

static void forget(struct recovery *rec, const char *name)
{
    struct args args = { .count = 0 };

    args_copy(&args, name);
    args_s(&args, "forget");
    args_s(&args, "");
    rec->pending++;
    streams_eval(rec->s, &lua_streams_held, REDIS_AGAIN, STREAMS_CALL_MS, &args, on_forgotten, rec);
}

/* What a dead worker held; its registration goes with the last of it, behind the settles in the same pipeline. */
static void on_held(void *arg, int result, const redisReply *reply, const struct mandor_err *err)
{
    struct recovery *rec = arg;
    const struct peer *peer = &rec->peers[rec->peer_at - 1];

    if (result < 0) {
        note_failure(rec, result, err);
    } else if (read_jobs(rec, reply_at(reply, 1), peer->name) == 0) {
        for (size_t i = 0; i < rec->job_count; i++)
            end_job(rec, &rec->jobs[i]);
        forget(rec, peer->name);
        data_dir_remove_lock(peer->lock, peer->fd);
    }
    over(rec);
}

static bool is_dead(const struct peer *peer)
{
    return peer->local ? peer->emptied : peer->gone_ms > FORGET_MS;
}

/* The next dead worker, or the end. */
static void next(struct recovery *rec)
{
    struct args args = { .count = 0 };

    while (rec->peer_at < rec->peer_count && rec->status == 0) {
        const struct peer *peer = &rec->peers[rec->peer_at++];
        if (!is_dead(peer))
            continue;
        rec->pending = 1;
        if (!peer->local) { /* it holds nothing any more whose lease is not over: those are seen to by themselves */
            forget(rec, peer->name);
            over(rec);
            return;
        }
        args_s(&args, peer->name);
        args_s(&args, "");
        args_s(&args, "");
        streams_eval(rec->s, &lua_streams_held, REDIS_AGAIN, STREAMS_CALL_MS, &args, on_held, rec);
        return;
    }
    finish(rec);
}

/* ---- leases that are over ---- */

static const struct peer *find_peer(const struct recovery *rec, const char *name)
{
    for (size_t i = 0; i < rec->peer_count; i++)
        if (str_eq(rec->peers[i].name, name))
            return &rec->peers[i];
    return NULL;
}

static bool may_take(const struct recovery *rec, const struct lost_job *job)
{
    const struct peer *peer = find_peer(rec, job->worker);

    if (str_eq(job->worker, rec->s->worker))
        return job->over_ms >= SELF_GRACE_MS;
    /* Of those that are here, the lock decides, and next() sees to them. */
    return peer == NULL || !peer->local;
}

static void on_looked(struct work *work)
{
    struct recovery *rec = CONTAINER_OF(work, struct recovery, work);

    rec->pending = 1;
    for (size_t i = 0; i < rec->job_count; i++)
        if (may_take(rec, &rec->jobs[i]))
            end_job(rec, &rec->jobs[i]);
    over(rec);
}

static void on_tick(void *arg, int result, const redisReply *reply, const struct mandor_err *err)
{
    struct recovery *rec = arg;
    int64_t vanished;

    if (result < 0) {
        note_failure(rec, result, err);
        finish(rec);
        return;
    }
    rec->req->recover.due = (size_t)reply_int(reply_at(reply, 0));
    rec->req->recover.removed = (size_t)reply_int(reply_at(reply, 1));
    vanished = reply_int(reply_at(reply, 2));
    if (vanished > 0) {
        rec->req->recover.due += (size_t)vanished;
        log_warn("%" PRId64 " entries of '%s' were deleted or trimmed by somebody else: their jobs "
                 "wait in the queue again",
                 vanished, rec->s->url.text);
    }
    if (read_peers(rec, reply_at(reply, 3)) < 0 || read_jobs(rec, reply_at(reply, 4), NULL) < 0) {
        struct mandor_err why;
        (void)err_set(&why, -ENOMEM, FAULT_HOST, "recover");
        note_failure(rec, -ENOMEM, &why);
        finish(rec);
        return;
    }
    work_submit(broker_loop(rec->s->broker), &rec->work, WORK_UNKNOWN, look_at_peers, on_looked);
}

/* After an outage every lease may look as if it were over: first those come who hold them. */
static int64_t takeover_grace(const struct streams *s)
{
    bool settled = s->up_since_ms != 0 && clock_mono_ms() - s->up_since_ms > s->lease_ms / 2;
    return settled ? TAKEOVER_GRACE_MS : -1;
}

void streams_recover(struct streams *s, struct broker_req *req)
{
    struct recovery *rec = calloc(1, sizeof *rec);
    struct args args = { .count = 0 };

    req->recover.due = req->recover.recovered = req->recover.removed = 0;
    if (rec == NULL) {
        streams_answer(s, req, err_set(&req->err, -ENOMEM, FAULT_HOST, "recover"));
        return;
    }
    rec->s = s;
    rec->req = req;
    args_s(&args, s->worker);
    args_i(&args, s->lease_ms);
    args_i(&args, takeover_grace(s));
    streams_eval(s, &lua_streams_tick, REDIS_AGAIN, STREAMS_CALL_MS, &args, on_tick, rec);
}
