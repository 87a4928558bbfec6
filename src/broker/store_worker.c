/* store_worker.c - the requests of a worker: lease, start, renew, settle and what belongs to them.
 *
 * The fence (I7): every write about an attempt first reads the job's row and goes on only when it is active, with this worker
 * and this attempt number.  One writer at a time (BEGIN IMMEDIATE), so what was read still holds when the row is written.
 */
#include <stdio.h>

#include "broker/store.h"

/* ---- the fence ---- */

struct held {
    int64_t id, state, attempt, attempts_used, put_backs, ended_attempt;
    bool mine; /* the row's worker is this one */
    bool started, cancel_requested;
};

static int stale(struct broker_req *req, const char *id, int64_t attempt)
{
    return err_say(&req->err, -ESTALE, FAULT_REMOTE,
                   "job %s attempt %" PRId64 " is not held by this worker", id, attempt);
}

/* Read who holds the job.  0, -ENOENT (gone), or SQLite's failure. */
static int read_held(struct store *store, const char *id_text, struct held *ret,
                     struct mandor_err *err)
{
    *ret = (struct held){ 0 };
    int r = store_job_id(id_text, &ret->id, err);
    if (r < 0)
        return r;

    sqlite3_stmt *stmt = store_stmt(store, STMT_HELD);
    bind_i(stmt, 1, ret->id);
    r = store_step(store, stmt);
    if (r <= 0)
        return r < 0 ? store_error(store, err) : -ENOENT;

    const char *worker = col_s(stmt, 1);
    ret->state = col_i(stmt, 0);
    ret->mine = worker != NULL && store->worker[0] != '\0' && str_eq(worker, store->worker);
    ret->attempt = col_i(stmt, 2);
    ret->started = col_i(stmt, 3) != 0;
    ret->cancel_requested = col_i(stmt, 4) != 0;
    ret->attempts_used = col_i(stmt, 5);
    ret->put_backs = col_i(stmt, 6);
    ret->ended_attempt = col_i(stmt, 7);
    (void)sqlite3_reset(stmt);
    return 0;
}

static bool is_held(const struct held *held, int64_t attempt)
{
    return held->state == JOB_ACTIVE && held->mine && held->attempt == attempt;
}

/* 0: it is ours; -ESTALE and SQLite's failures are in req->err. */
static int fence(struct store *store, struct broker_req *req, const char *id, int64_t attempt,
                 struct held *ret)
{
    int r = read_held(store, id, ret, &req->err);
    if (r < 0 && r != -ENOENT)
        return r;
    if (r == -ENOENT || !is_held(ret, attempt))
        return stale(req, id, attempt);
    return 0;
}

static int extend(struct store *store, int64_t id)
{
    sqlite3_stmt *stmt = store_stmt(store, STMT_EXTEND);
    bind_i(stmt, 1, id);
    bind_i(stmt, 2, store_boot_ms() + store->lease_ms);
    bind_s(stmt, 3, store_boot_id());
    store->rows++;
    return store_step(store, stmt);
}

/* ---- lease ---- */

int store_promote(struct store *store, const char *queue, int limit)
{
    sqlite3_stmt *stmt = store_stmt(store, STMT_PROMOTE);
    bind_s(stmt, 1, queue);
    bind_s(stmt, 2, store_boot_id());
    bind_i(stmt, 3, store_boot_ms());
    bind_i(stmt, 4, limit);
    int r = store_step(store, stmt);
    if (r < 0)
        return r;

    int moved = sqlite3_changes(store->db);
    store->rows += moved;
    return moved;
}

/* Copy one ready row. */
static int fill_lease(sqlite3_stmt *stmt, const char *queue, struct lease *ret)
{
    char id[STORE_ID_SIZE];

    *ret = (struct lease){ 0 };
    const char *spec = col_s(stmt, 1);
    (void)snprintf(id, sizeof id, "%" PRId64, col_i(stmt, 0));
    ret->id = strdup(id);
    ret->queue = strdup(queue);
    ret->spec_text = spec != NULL ? strdup(spec) : NULL;
    ret->attempt = col_i(stmt, 2);
    ret->attempts_used = col_i(stmt, 3);
    ret->put_backs = col_i(stmt, 4);
    ret->created_ms = col_i(stmt, 5);
    if (ret->id != NULL && ret->queue != NULL && ret->spec_text != NULL)
        return 0;
    lease_done(ret);
    return -ENOMEM;
}

static int mark_leased(struct store *store, const struct lease *lease, int64_t attempts)
{
    sqlite3_stmt *stmt = store_stmt(store, lease->started ? STMT_LEASE_START : STMT_LEASE);
    bind_i(stmt, 1, strtoll(lease->id, NULL, 10));
    bind_s(stmt, 2, store->worker);
    bind_i(stmt, 3, store_boot_ms() + store->lease_ms);
    bind_s(stmt, 4, store_boot_id());
    if (lease->started) {
        bind_i(stmt, 5, store_wall_ms());
        if (attempts > 0)
            bind_i(stmt, 6, attempts);
    }
    store->rows++;
    return store_step(store, stmt);
}

/* How many attempts the queue gives a job that does not say; which of them do, only parsing would tell for certain: what looks as if
 * it did is left to BROKER_START. */
static bool may_say_attempts(const char *spec_text)
{
    return strstr(spec_text, "\"attempts\"") != NULL;
}

/* Lease up to queue->max jobs of one queue behind those that req already has, and start what may be started.
 * started: how many were, of the whole request. */
static int lease_queue(struct store *store, struct broker_req *req, const struct lease_queue *queue,
                       size_t *started)
{
    size_t first = req->lease.count, end = first + MIN(queue->max, req->lease.want - first);
    size_t start = MIN(queue->start, req->lease.start - *started);

    int r = store_promote(store, queue->name, STORE_TX_ROWS);
    if (r < 0)
        return r;
    sqlite3_stmt *stmt = store_stmt(store, STMT_READY);
    bind_s(stmt, 1, queue->name);
    bind_i(stmt, 2, (int64_t)(end - first));
    while ((r = store_step(store, stmt)) == 1) {
        struct lease *lease = &req->lease.leases[req->lease.count];
        r = fill_lease(stmt, queue->name, lease);
        if (r < 0) {
            (void)sqlite3_reset(stmt);
            /* Undo the whole: nothing may stay leased that nobody hears of. */
            store->rc = SQLITE_NOMEM;
            return r;
        }
        req->lease.count++;
        if (start == 0 || col_i(stmt, 6) != 0 ||
            (queue->attempts > 0 && may_say_attempts(lease->spec_text)))
            continue;
        lease->started = true;
        lease->attempt++;
        start--;
        ++*started;
    }
    for (size_t i = first; r == 0 && i < req->lease.count; i++)
        r = mark_leased(store, &req->lease.leases[i], queue->attempts);
    return r;
}

/* The queues of one request, copied, since the statement that lists them is used again meanwhile. */
struct queue_list {
    struct lease_queue *items;
    size_t count;
};

static void queue_list_done(struct queue_list *list)
{
    for (size_t i = 0; i < list->count; i++)
        free((char *)list->items[i].name);
    free(list->items);
}

static int queue_list_add(struct queue_list *list, const char *name, const struct lease_queue *like)
{
    struct lease_queue *items = realloc(list->items, (list->count + 1) * sizeof *items);
    if (items == NULL)
        return -ENOMEM;
    list->items = items;
    items[list->count] = *like;
    items[list->count].name = strdup(name);
    if (items[list->count].name == NULL)
        return -ENOMEM;
    list->count++;
    return 0;
}

/* All unpaused queues, the first one a different one each time so that none starves. */
static int list_all_queues(struct store *store, const struct broker_req *req,
                           struct queue_list *ret)
{
    const struct lease_queue like = { .max = req->lease.want, .start = req->lease.start };
    sqlite3_stmt *stmt = store_stmt(store, STMT_QUEUES);
    int r;
    while ((r = store_step(store, stmt)) == 1)
        if (col_i(stmt, 1) == 0 && (r = queue_list_add(ret, col_s(stmt, 0), &like)) < 0) {
            (void)sqlite3_reset(stmt);
            store->rc = SQLITE_NOMEM;
            return r;
        }
    for (unsigned turn = ret->count > 1 ? store->lease_turn++ % (unsigned)ret->count : 0; turn > 0;
         turn--) {
        struct lease_queue head = ret->items[0];
        memmove(ret->items, ret->items + 1, (ret->count - 1) * sizeof *ret->items);
        ret->items[ret->count - 1] = head;
    }
    return r;
}

static int list_asked_queues(struct store *store, const struct broker_req *req,
                             struct queue_list *ret)
{
    for (size_t i = 0; i < req->lease.queue_count; i++) {
        const struct lease_queue *queue = &req->lease.queues[i];
        sqlite3_stmt *stmt = store_stmt(store, STMT_QUEUE_PAUSED);
        bind_s(stmt, 1, queue->name);
        int r = store_step(store, stmt);
        bool paused = r == 1 && col_i(stmt, 0) != 0;
        if (r == 1)
            (void)sqlite3_reset(stmt);
        if (r < 0)
            return r;
        if (!paused && queue_list_add(ret, queue->name, queue) < 0) {
            store->rc = SQLITE_NOMEM;
            return -ENOMEM;
        }
    }
    return 0;
}

/* When will there be more, and is there anything left at all? */
static int look_ahead(struct store *store, struct broker_req *req, const struct queue_list *queues)
{
    const char *boot = store_boot_id();
    int64_t now = store_boot_ms();

    for (size_t i = 0; i < queues->count; i++) {
        const char *name = queues->items[i].name;
        sqlite3_stmt *stmt = store_stmt(store, STMT_NEXT_DUE);
        bind_s(stmt, 1, name);
        bind_s(stmt, 2, boot);
        int r = store_step(store, stmt);
        int64_t due = r == 1 ? MAX(col_i(stmt, 0) - now, 0) : -1;
        /* Delays from before a reboot go by the wall clock, which may still be set: look again soon. */
        if (r == 0) {
            stmt = store_stmt(store, STMT_OTHER_BOOT_DUE);
            bind_s(stmt, 1, name);
            bind_s(stmt, 2, boot);
            r = store_step(store, stmt);
            due = r == 1 ? 1000 : -1;
        }
        if (r < 0)
            return r;
        (void)sqlite3_reset(stmt);
        if (due >= 0 && (req->lease.next_due_ms < 0 || due < req->lease.next_due_ms))
            req->lease.next_due_ms = due;

        if (req->lease.drained) {
            stmt = store_stmt(store, STMT_BUSY);
            bind_s(stmt, 1, name);
            if ((r = store_step(store, stmt)) < 0)
                return r;
            (void)sqlite3_reset(stmt);
            req->lease.drained = r == 0;
        }
    }
    return 0;
}

int store_lease(struct store *store, struct broker_req *req)
{
    __attribute__((cleanup(queue_list_done))) struct queue_list queues = { 0 };

    req->lease.count = 0;
    req->lease.next_due_ms = -1;
    req->lease.drained = false;
    if (store->worker[0] == '\0')
        return err_set(&req->err, -EINVAL, FAULT_BUG, "lease before register");

    size_t started = 0;
    int r = req->lease.queue_count == 0 ? list_all_queues(store, req, &queues)
                                        : list_asked_queues(store, req, &queues);
    for (size_t i = 0; r == 0 && i < queues.count && req->lease.count < req->lease.want; i++)
        r = lease_queue(store, req, &queues.items[i], &started);
    if (r == 0 && req->lease.count < req->lease.want) {
        req->lease.drained = req->lease.count == 0;
        r = look_ahead(store, req, &queues);
    }
    return r < 0 ? store_error(store, &req->err) : 0;
}

/* ---- the life of an attempt ---- */

int store_start(struct store *store, struct broker_req *req)
{
    struct held held;
    req->start.cancelled = false;
    int r = fence(store, req, req->start.id, req->start.attempt, &held);
    if (r < 0)
        return r;
    if (held.started)
        return stale(req, req->start.id, req->start.attempt);
    if (held.cancel_requested) { /* it never starts, so there is no new token */
        req->start.cancelled = true;
        return 0;
    }

    sqlite3_stmt *stmt = store_stmt(store, STMT_START);
    bind_i(stmt, 1, held.id);
    bind_i(stmt, 2, store_wall_ms());
    bind_i(stmt, 3, store_boot_ms() + store->lease_ms);
    bind_s(stmt, 4, store_boot_id());
    if (req->start.attempts > 0)
        bind_i(stmt, 5, req->start.attempts);
    if (store_step(store, stmt) < 0)
        return store_error(store, &req->err);
    store->rows++;
    req->start.attempt = held.attempt + 1;
    return 0;
}

int store_renew(struct store *store, struct broker_req *req)
{
    for (size_t i = 0; i < req->renew.count; i++) {
        const struct lease_ref *ref = &req->renew.refs[i];
        struct held held;
        int r = fence(store, req, ref->id, ref->attempt, &held);

        req->renew.flags[i] = 0;
        if (r < 0 && store->rc != SQLITE_OK)
            return r;
        if (r < 0)
            req->renew.flags[i] = RENEW_LOST;
        else if (extend(store, held.id) < 0)
            return store_error(store, &req->err);
        else if (held.cancel_requested)
            req->renew.flags[i] = RENEW_CANCEL;
    }
    req->renew.left_ms = store->lease_ms;
    err_clear(&req->err);
    return 0;
}

int store_begin_settle(struct store *store, struct broker_req *req)
{
    struct held held;
    int r = fence(store, req, req->begin_settle.id, req->begin_settle.attempt, &held);
    if (r < 0)
        return r;
    req->begin_settle.left_ms = store->lease_ms;
    return extend(store, held.id) < 0 ? store_error(store, &req->err) : 0;
}

int store_phase(struct store *store, struct broker_req *req)
{
    struct held held;
    int r = fence(store, req, req->phase.id, req->phase.attempt, &held);
    if (r < 0)
        return r;

    sqlite3_stmt *stmt = store_stmt(store, STMT_PHASE);
    bind_i(stmt, 1, held.id);
    bind_s(stmt, 2, req->phase.phase);
    bind_s(stmt, 3, req->phase.containment);
    store->rows++;
    return store_step(store, stmt) < 0 ? store_error(store, &req->err) : 0;
}

int store_give_back(struct store *store, struct broker_req *req)
{
    for (size_t i = 0; i < req->give_back.count; i++) {
        const struct lease_ref *ref = &req->give_back.refs[i];
        struct held held;
        int r = fence(store, req, ref->id, ref->attempt, &held);
        if (r < 0 && store->rc != SQLITE_OK)
            return r;
        if (r < 0 || held.started) /* no longer ours: nothing to give back */
            continue;

        sqlite3_stmt *stmt =
            store_stmt(store, held.cancel_requested ? STMT_GIVE_BACK_CANCELLED : STMT_GIVE_BACK);
        bind_i(stmt, 1, held.id);
        if (held.cancel_requested)
            bind_i(stmt, 2, store_wall_ms());
        if (store_step(store, stmt) < 0)
            return store_error(store, &req->err);
        store->rows++;
        store->wake = true;
    }
    err_clear(&req->err);
    return 0;
}

/* ---- settle ---- */

/* The json of the attempt before goes where `show` finds earlier attempts. */
static int move_history(struct store *store, int64_t id, int64_t attempts)
{
    int r = store_run_i(store, STMT_HISTORY_MOVE, id);
    if (r < 0 || attempts <= STORE_HISTORY_MAX)
        return r;

    sqlite3_stmt *stmt = store_stmt(store, STMT_HISTORY_TRIM);
    bind_i(stmt, 1, id);
    bind_i(stmt, 2, attempts - STORE_HISTORY_MAX);
    return store_step(store, stmt);
}

int store_end_attempt(struct store *store, const struct store_end *end, enum job_state *ret_state)
{
    enum job_state state = end->plan.state;
    if (end->cancel_requested && !job_state_final(state))
        state = JOB_CANCELLED; /* who asked for the end does not want a retry */

    sqlite3_stmt *stmt = store_stmt(store, STMT_END);
    bind_i(stmt, 1, end->id);
    bind_i(stmt, 2, state);
    bind_i(stmt, 3, end->attempts_used + (end->plan.charged ? 1 : 0));
    bind_i(stmt, 4, end->plan.charged || job_state_final(state) ? 0 : end->put_backs + 1);
    if (state == JOB_DELAYED) {
        bind_i(stmt, 5, store_wall_ms() + end->plan.delay_ms);
        bind_i(stmt, 6, store_boot_ms() + end->plan.delay_ms);
        bind_s(stmt, 7, store_boot_id());
    }
    if (end->started_ms > 0)
        bind_i(stmt, 8, end->started_ms);
    bind_i(stmt, 9, end->finished_ms);
    if (job_state_final(state))
        bind_i(stmt, 10, end->finished_ms);
    bind_s(stmt, 11, end->attempt_text);
    int r = store_step(store, stmt);
    if (r < 0)
        return r;

    store->rows++;
    if (state == JOB_WAITING)
        store->wake = true;
    *ret_state = state;
    return 0;
}

static int put_output(struct store *store, int64_t id, int64_t attempt, int stream,
                      const void *bytes, size_t len)
{
    if (bytes == NULL || len == 0)
        return 0;

    sqlite3_stmt *stmt = store_stmt(store, STMT_OUTPUT_PUT);
    bind_i(stmt, 1, id);
    bind_i(stmt, 2, attempt);
    bind_i(stmt, 3, stream);
    (void)sqlite3_bind_blob64(stmt, 4, bytes, len, SQLITE_STATIC);
    store->rows++;
    return store_step(store, stmt);
}

/* Remember this queue's retention for store_recover(); written only when it differs from what was written last. */
static int note_retention(struct store *store, const char *queue, enum job_state state,
                          int64_t keep_ms, int64_t keep_count)
{
    char *text = NULL;
    if (asprintf(&text, "%s/%d/%" PRId64 "/%" PRId64, queue, state, keep_ms, keep_count) < 0)
        return 0; /* a hint; the next settle notes it */
    if (store->keep_seen != NULL && str_eq(store->keep_seen, text)) {
        free(text);
        return 0;
    }

    sqlite3_stmt *stmt = store_stmt(store, STMT_KEEP);
    bind_s(stmt, 1, queue);
    bind_i(stmt, 2, state);
    bind_i(stmt, 3, keep_ms);
    bind_i(stmt, 4, keep_count);
    int r = store_step(store, stmt);
    free(store->keep_seen);
    store->keep_seen = text;
    return r;
}

/* Counting costs time in proportion to keep_count, so it is done once in a share of keep_count settles; what is kept may be over
 * by that share for each worker. */
static int retain(struct store *store, const struct broker_req *req, enum job_state state)
{
    int64_t keep_ms = req->settle.keep_ms, keep_count = req->settle.keep_count;
    const char *queue = req->settle.queue;

    if (queue == NULL || !job_state_final(state))
        return 0;
    int r = note_retention(store, queue, state, keep_ms, keep_count);
    if (keep_ms <= 0 && keep_count <= 0) /* for ever: what an earlier configuration said must end */
        return r;
    unsigned every =
        keep_count > 0 ? (unsigned)MIN(MAX(keep_count / 32, (int64_t)1), (int64_t)256) : 64;
    if (r < 0 || store->settle_turn++ % every != 0)
        return r;
    return store_expire(store, queue, state, keep_ms, keep_count, STORE_EXPIRE_MAX);
}

static int settle_held(struct store *store, struct broker_req *req, const struct held *held)
{
    enum job_state state;
    struct store_end end = {
        .id = held->id,
        .plan = req->settle.plan,
        .cancel_requested = held->cancel_requested,
        .attempts_used = held->attempts_used,
        .put_backs = held->put_backs,
        .started_ms = req->settle.started_ms,
        .finished_ms = req->settle.finished_ms > 0 ? req->settle.finished_ms : store_wall_ms(),
        .attempt_text = req->settle.record,
    };
    int r = held->ended_attempt > 0 ? move_history(store, held->id, held->attempt) : 0;
    if (r >= 0)
        r = store_end_attempt(store, &end, &state);
    if (r >= 0)
        r = put_output(store, held->id, held->attempt, 1, req->settle.out, req->settle.out_len);
    if (r >= 0)
        r = put_output(store, held->id, held->attempt, 2, req->settle.errout,
                       req->settle.errout_len);
    if (r >= 0)
        r = retain(store, req, state);
    return r < 0 ? store_error(store, &req->err) : 0;
}

int store_settle(struct store *store, struct broker_req *req)
{
    struct held held;
    int r = read_held(store, req->settle.id, &held, &req->err);
    if (r < 0 && r != -ENOENT)
        return r;

    bool unstarted = !held.started && req->settle.plan.state != JOB_CANCELLED;
    if (r == -ENOENT || !is_held(&held, req->settle.attempt) || unstarted) {
        /* asked again, because the answer to the first time was lost: it is written already */
        if (r == 0 && held.mine && held.attempt == req->settle.attempt &&
            held.ended_attempt == held.attempt && held.ended_attempt > 0)
            return 0;
        return stale(req, req->settle.id, req->settle.attempt);
    }
    return settle_held(store, req, &held);
}

/* ---- workers ---- */

int store_register(struct store *store, struct broker_req *req)
{
    char host[65] = "";
    if (strlen(req->reg.worker) >= sizeof store->worker || req->reg.worker[0] == '\0')
        return err_set(&req->err, -EINVAL, FAULT_CALLER,
                       "worker name '%s' must have 1 to %zu bytes", req->reg.worker,
                       sizeof store->worker - 1);

    (void)gethostname(host, sizeof host - 1);
    sqlite3_stmt *stmt = store_stmt(store, STMT_REGISTER);
    bind_s(stmt, 1, req->reg.worker);
    bind_i(stmt, 2, getpid());
    bind_s(stmt, 3, host);
    bind_s(stmt, 4, store_boot_id());
    bind_s(stmt, 5, req->reg.lock_path != NULL ? req->reg.lock_path : "");
    bind_s(stmt, 6, req->reg.containment != NULL ? req->reg.containment : "");
    bind_s(stmt, 7, req->reg.queues != NULL ? req->reg.queues : "[]");
    bind_i(stmt, 8, store_wall_ms());
    if (store_step(store, stmt) < 0)
        return store_error(store, &req->err);
    (void)snprintf(store->worker, sizeof store->worker, "%s", req->reg.worker);
    store->lease_ms = req->reg.lease_ms > 0 ? req->reg.lease_ms : STORE_LEASE_MS;
    return 0;
}

int store_unregister(struct store *store, struct broker_req *req)
{
    if (store->worker[0] == '\0')
        return 0;

    sqlite3_stmt *stmt = store_stmt(store, STMT_WORKER_UNSTARTED);
    bind_s(stmt, 1, store->worker);
    bind_i(stmt, 2, store_wall_ms());
    int r = store_step(store, stmt);
    /* Whoever leaves started jobs behind stays on the list, so that their containment is emptied first. */
    if (r == 0)
        r = store_run_s(store, STMT_SIGN_OFF, store->worker);
    if (r < 0)
        return store_error(store, &req->err);
    store->wake = true;
    return 0;
}
