/* store_recover.c - what workers do for each other once a second: due delays, the jobs of dead workers, retention.
 *
 * A dead worker's job is taken over only when both hold (I8: no two attempts of a job are alive at the same time):
 *
 *     its liveness lock is in our hand (or its boot is over)  and  what contained its processes is empty
 *
 * The lock is shared by worker and guard, so it is free only when both are gone.  It stays in our hand until the jobs are put
 * through their verdict, and time alone decides nothing while somebody holds it.  A row whose worker is not registered (only a
 * hand at the database makes one: who signs off stays registered while a started job is its own) names nothing that could be
 * emptied: it goes when its lease has run out and, if it was started in this boot, nobody holds the lock of that worker.
 */
#include <stdio.h>

#include "base/json.h"
#include "base/random.h"
#include "broker/data_dir.h"
#include "broker/store.h"

#define RECOVER_ROWS   200 /* jobs put through their verdict in one transaction */
#define RECOVER_FILES  64  /* output directories removed in one round */
#define RECOVER_TRACES 32  /* a look for traces in the first round and in every so many */

/* ---- due delays ---- */

static int promote_other_boots(struct store *store)
{
    sqlite3_stmt *stmt = store_stmt(store, STMT_PROMOTE_OTHER_BOOT);
    bind_i(stmt, 1, store_wall_ms());
    bind_s(stmt, 2, store_boot_id());
    bind_i(stmt, 3, STORE_TX_ROWS);
    int r = store_step(store, stmt);
    return r < 0 ? r : sqlite3_changes(store->db);
}

/* names: malloc'ed copies, NULL-terminated. */
static int read_queues(struct store *store, char ***ret)
{
    size_t count = 0;
    char **names = calloc(1, sizeof *names);
    sqlite3_stmt *stmt = store_stmt(store, STMT_QUEUES);
    int r = names != NULL ? 0 : -ENOMEM;

    while (r == 0 && (r = store_step(store, stmt)) == 1) {
        char **more = realloc(names, (count + 2) * sizeof *names);
        r = more != NULL ? 0 : -ENOMEM;
        if (more != NULL) {
            names = more;
            names[count] = strdup(col_s(stmt, 0));
            r = names[count] != NULL ? 0 : -ENOMEM;
            names[++count] = NULL;
        }
    }
    if (r == -ENOMEM && store->rc == SQLITE_OK)
        store->rc = SQLITE_NOMEM;
    *ret = names;
    return r;
}

static void names_done(char ***names)
{
    for (char **name = *names; name != NULL && *name != NULL; name++)
        free(*name);
    free(*names);
}

static int promote_all(struct store *store, char **names)
{
    int r = promote_other_boots(store), total = r;

    for (; r >= 0 && *names != NULL && total < STORE_TX_ROWS; names++) {
        r = store_promote(store, *names, STORE_TX_ROWS - total);
        total += MAX(r, 0);
    }
    return r < 0 ? r : total;
}

/* What this worker leased and neither started nor renewed it does not know of any more: giving it back had failed.  Should it
 * know after all, START and RENEW tell it the truth.  Returns how many or -errno. */
static int give_back_forgotten(struct store *store)
{
    sqlite3_stmt *stmt = store_stmt(store, STMT_OWN_EXPIRED);
    bind_s(stmt, 1, store->worker);
    bind_i(stmt, 2, store_boot_ms());
    bind_s(stmt, 3, store_boot_id());
    bind_i(stmt, 4, store_wall_ms());
    int r = store_step(store, stmt);
    return r < 0 ? r : sqlite3_changes(store->db);
}

/* One round; what is left over is for the next second. */
static int due(struct store *store, struct broker_req *req)
{
    __attribute__((cleanup(names_done))) char **names = NULL;

    int r = store_begin(store, &req->err);
    if (r < 0)
        return r;
    r = read_queues(store, &names);
    if (r == 0)
        r = promote_all(store, names);
    int forgotten = r < 0 ? r : give_back_forgotten(store);
    r = forgotten < 0 ? forgotten : r + forgotten;
    if (r < 0) {
        r = store_error(store, &req->err);
        store_rollback(store);
        return r;
    }
    size_t moved = (size_t)r;
    r = store_commit(store, &req->err);
    if (r == 0 && moved > 0) {
        req->recover.due += moved;
        store->wake = true;
    }
    return r;
}

/* ---- one job of a dead worker ---- */

/* The row of STMT_WORKER_ACTIVE or STMT_ORPHAN, copied: the statement is reset before the job is written. */
struct dead_job {
    int64_t id, attempts_used, put_backs, started_ms, attempt, attempts;
    bool started, cancel_requested;
    char *spec_text;
};

static int copy_dead(sqlite3_stmt *stmt, struct dead_job *ret)
{
    const char *spec = col_s(stmt, 6);
    *ret = (struct dead_job){
        .id = col_i(stmt, 0),
        .started = col_i(stmt, 1) != 0,
        .cancel_requested = col_i(stmt, 2) != 0,
        .attempts_used = col_i(stmt, 3),
        .put_backs = col_i(stmt, 4),
        .started_ms = col_i(stmt, 5),
        .spec_text = strdup(spec != NULL ? spec : ""),
        .attempt = col_i(stmt, 7),
        .attempts = col_i(stmt, 8),
    };
    return ret->spec_text != NULL ? 0 : -ENOMEM;
}

static int give_back_dead(struct store *store, const struct dead_job *job)
{
    sqlite3_stmt *stmt =
        store_stmt(store, job->cancel_requested ? STMT_GIVE_BACK_CANCELLED : STMT_GIVE_BACK);
    bind_i(stmt, 1, job->id);
    if (job->cancel_requested)
        bind_i(stmt, 2, store_wall_ms());
    store->rows++;
    return store_step(store, stmt);
}

/* What follows from the death of the worker.  A spec that cannot be read any more cannot be retried either. */
static struct retry_plan plan_dead(const struct dead_job *job, const struct verdict *verdict)
{
    SCOPED_JSON *json = NULL;
    SCOPED(spec_free) struct spec *spec = NULL;
    uint64_t random = random_seed();

    if (json_parse(job->spec_text, strlen(job->spec_text), &json, NULL) < 0 ||
        spec_from_json(json, NULL, &spec, NULL) < 0)
        return (struct retry_plan){ .state = JOB_FAILED, .charged = true };
    spec->attempts = job->attempts; /* of its queue, where the job itself does not say */
    return retry_plan(verdict_outcome(verdict, spec), spec, job->attempts_used, job->put_backs,
                      random_01(&random));
}

static int end_dead(struct store *store, const struct dead_job *job, const char *worker)
{
    struct verdict verdict = { .cause = CAUSE_WORKER_DIED, .exit_code = -1 };
    (void)snprintf(verdict.error, sizeof verdict.error,
                   "worker '%s' died while it ran this attempt", worker);
    SCOPED_BUF text = { 0 };
    if (record_attempt_text(&(struct record_attempt){ .verdict = &verdict }, &text) < 0) {
        store->rc = SQLITE_NOMEM;
        return -ENOMEM;
    }

    enum job_state state;
    int r = store_run_i(store, STMT_HISTORY_MOVE, job->id);
    return r < 0 ? r
                 : store_end_attempt(store,
                                     &(struct store_end){
                                         .id = job->id,
                                         .plan = plan_dead(job, &verdict),
                                         .cancel_requested = job->cancel_requested,
                                         .attempts_used = job->attempts_used,
                                         .put_backs = job->put_backs,
                                         .started_ms = job->started_ms,
                                         .finished_ms = store_wall_ms(),
                                         .attempt_text = text.data,
                                     },
                                     &state);
}

static int settle_dead(struct store *store, const struct dead_job *job, const char *worker)
{
    store->wake = true;
    return job->started ? end_dead(store, job, worker) : give_back_dead(store, job);
}

/* ---- dead workers ---- */

struct dead_worker {
    char *name, *boot_id, *lock_path, *containment;
};

static void dead_worker_done(struct dead_worker *worker)
{
    free(worker->name);
    free(worker->boot_id);
    free(worker->lock_path);
    free(worker->containment);
}

static char *copy_col(sqlite3_stmt *stmt, int column)
{
    const char *text = col_s(stmt, column);
    return strdup(text != NULL ? text : "");
}

struct dead_list {
    struct dead_worker *items;
    size_t count;
};

static void dead_list_done(struct dead_list *list)
{
    for (size_t i = 0; i < list->count; i++)
        dead_worker_done(&list->items[i]);
    free(list->items);
}

/* All workers but this one. */
static int read_others(struct store *store, struct dead_list *ret)
{
    sqlite3_stmt *stmt = store_stmt(store, STMT_WORKERS);
    int r;
    while ((r = store_step(store, stmt)) == 1) {
        if (str_eq(col_s(stmt, 0), store->worker))
            continue;
        struct dead_worker *more = realloc(ret->items, (ret->count + 1) * sizeof *more);
        if (more == NULL)
            break;
        ret->items = more;
        struct dead_worker *item = &more[ret->count++];
        *item = (struct dead_worker){ copy_col(stmt, 0), copy_col(stmt, 3), copy_col(stmt, 4),
                                      copy_col(stmt, 5) };
        if (item->name == NULL || item->boot_id == NULL || item->lock_path == NULL ||
            item->containment == NULL)
            break;
    }
    (void)sqlite3_reset(stmt);
    if (r == 1) {
        store->rc = SQLITE_NOMEM;
        return -ENOMEM;
    }
    return r;
}

/* Put up to RECOVER_ROWS of the worker's jobs through; the last round removes the worker.  Returns how many or < 0. */
static int settle_worker_some(struct store *store, const struct dead_worker *worker)
{
    struct dead_job jobs[RECOVER_ROWS];
    int count = 0, r;
    sqlite3_stmt *stmt = store_stmt(store, STMT_WORKER_ACTIVE);

    bind_s(stmt, 1, worker->name);
    bind_i(stmt, 2, RECOVER_ROWS);
    while ((r = store_step(store, stmt)) == 1 && count < RECOVER_ROWS) {
        r = copy_dead(stmt, &jobs[count]);
        if (r < 0) {
            store->rc = SQLITE_NOMEM;
            break;
        }
        count++;
    }
    (void)sqlite3_reset(stmt);
    for (int i = 0; i < count; i++) {
        if (r >= 0)
            r = settle_dead(store, &jobs[i], worker->name);
        free(jobs[i].spec_text);
    }
    if (r >= 0 && count < RECOVER_ROWS)
        r = store_run_s(store, STMT_FORGET_WORKER, worker->name);
    return r < 0 ? r : count;
}

/* Has the row changed since it was read (a new worker of the same name has registered with another lock)? */
static int still_registered(struct store *store, const struct dead_worker *worker)
{
    sqlite3_stmt *stmt = store_stmt(store, STMT_WORKERS);
    int r, same = 0;
    while ((r = store_step(store, stmt)) == 1)
        if (str_eq(col_s(stmt, 0), worker->name))
            same = str_eq(col_s(stmt, 3), worker->boot_id) &&
                   str_eq(col_s(stmt, 4), worker->lock_path);
    return r < 0 ? r : same;
}

static int settle_worker(struct store *store, struct broker_req *req,
                         const struct dead_worker *worker)
{
    for (int count = RECOVER_ROWS; count == RECOVER_ROWS;) {
        int r = store_begin(store, &req->err);
        if (r < 0)
            return r;
        r = still_registered(store, worker);
        if (r > 0)
            r = settle_worker_some(store, worker);
        else if (r == 0)
            r = -ESTALE;
        if (r < 0) {
            if (store->rc != SQLITE_OK)
                r = store_error(store, &req->err);
            store_rollback(store);
            return r == -ESTALE ? 0 : r;
        }
        count = r;
        r = store_commit(store, &req->err);
        if (r < 0)
            return r;
        req->recover.recovered += (size_t)count;
    }
    return 0;
}

static void remove_traces(struct store *store, const struct dead_worker *worker, int lock_fd)
{
    char path[PATH_MAX];
    if ((size_t)snprintf(path, sizeof path, "%s/run/%s.sock", store->data_dir, worker->name) <
        sizeof path)
        (void)unlink(path);
    data_dir_remove_lock(worker->lock_path, lock_fd);
}

static int recover_worker(struct store *store, struct broker_req *req,
                          const struct dead_worker *worker)
{
    SCOPED_FD lock_fd = -1;
    bool same_boot = str_eq(worker->boot_id, store_boot_id());

    if (data_dir_worker_alive(worker->lock_path, &lock_fd) == 1)
        return 0;
    /* nothing survives a reboot */
    if (same_boot && (req->recover.empty == NULL ||
                      req->recover.empty(worker->containment, req->recover.arg) != 0))
        return 0;

    int r = settle_worker(store, req, worker);
    if (r == 0)
        remove_traces(store, worker, lock_fd);
    return r;
}

static int dead_workers(struct store *store, struct broker_req *req)
{
    __attribute__((cleanup(dead_list_done))) struct dead_list others = { 0 };

    store->rc = SQLITE_OK;
    int r = read_others(store, &others) < 0 ? store_error(store, &req->err) : 0;
    for (size_t i = 0; r == 0 && i < others.count; i++)
        r = recover_worker(store, req, &others.items[i]);
    return r;
}

/* ---- active rows that belong to nobody (R66) ---- */

struct orphan {
    int64_t id;
    bool may_live; /* it was started, in this boot */
    char *worker;
};

static int read_orphans(struct store *store, struct orphan orphans[static RECOVER_ROWS])
{
    int count = 0, r;
    sqlite3_stmt *stmt = store_stmt(store, STMT_ORPHANS);
    bind_s(stmt, 1, store_boot_id());
    bind_i(stmt, 2, store_boot_ms());
    bind_i(stmt, 3, RECOVER_ROWS);
    while ((r = store_step(store, stmt)) == 1 && count < RECOVER_ROWS) {
        orphans[count] = (struct orphan){ .id = col_i(stmt, 0),
                                          .may_live = col_i(stmt, 1) != 0,
                                          .worker = copy_col(stmt, 2) };
        if (orphans[count].worker == NULL)
            break;
        count++;
    }
    (void)sqlite3_reset(stmt);
    return r < 0 ? r : count;
}

static int settle_orphan(struct store *store, struct broker_req *req, const struct orphan *orphan)
{
    struct dead_job job;
    char worker[64] = "?";
    sqlite3_stmt *stmt = store_stmt(store, STMT_ORPHAN);
    bind_s(stmt, 1, store_boot_id());
    bind_i(stmt, 2, store_boot_ms());
    bind_i(stmt, 3, orphan->id);
    int r = store_step(store, stmt);
    if (r <= 0)
        return r; /* it has changed meanwhile */

    if (col_s(stmt, 9) != NULL)
        (void)snprintf(worker, sizeof worker, "%s", col_s(stmt, 9));
    r = copy_dead(stmt, &job);
    (void)sqlite3_reset(stmt);
    if (r < 0) {
        store->rc = SQLITE_NOMEM;
        return r;
    }
    r = settle_dead(store, &job, worker);
    free(job.spec_text);
    return r < 0 ? r : 1;
}

/* Nothing of it can be alive. */
static bool orphan_dead(struct store *store, const struct orphan *orphan)
{
    char path[PATH_MAX];
    int fd;

    if (!orphan->may_live)
        return true;
    if (orphan->worker[0] == '\0' || strchr(orphan->worker, '/') != NULL ||
        (size_t)snprintf(path, sizeof path, "%s/run/%s.lock", store->data_dir, orphan->worker) >=
            sizeof path)
        return true; /* no worker of ours has such a name */
    bool alive = data_dir_worker_alive(path, &fd) == 1;
    if (fd >= 0)
        (void)close(fd);
    return !alive;
}

static int settle_orphans(struct store *store, struct broker_req *req, const struct orphan *orphans,
                          int count)
{
    size_t done = 0;
    int r = store_begin(store, &req->err);
    if (r < 0)
        return r;
    for (int i = 0; i < count; i++) {
        r = settle_orphan(store, req, &orphans[i]);
        if (r < 0) {
            r = store_error(store, &req->err);
            store_rollback(store);
            return r;
        }
        done += (size_t)r;
    }
    r = store_commit(store, &req->err);
    if (r == 0)
        req->recover.recovered += done;
    return r;
}

static int orphans(struct store *store, struct broker_req *req)
{
    struct orphan found[RECOVER_ROWS];

    store->rc = SQLITE_OK;
    int count = read_orphans(store, found), dead = 0;
    if (count < 0)
        return store_error(store, &req->err);
    for (int i = 0; i < count; i++) { /* the dead move to the front */
        if (orphan_dead(store, &found[i])) {
            struct orphan swap = found[dead];
            found[dead++] = found[i];
            found[i] = swap;
        }
    }
    int r = dead > 0 ? settle_orphans(store, req, found, dead) : 0;
    for (int i = 0; i < count; i++)
        free(found[i].worker);
    return r;
}

/* ---- retention ---- */

struct keep {
    char *queue;
    enum job_state state;
    int64_t ms, count;
};

static int read_keeps(struct store *store, struct keep keeps[static 256])
{
    int count = 0, r;
    sqlite3_stmt *stmt = store_stmt(store, STMT_KEEPS);
    while ((r = store_step(store, stmt)) == 1 && count < 256) {
        keeps[count] = (struct keep){ copy_col(stmt, 0), (enum job_state)col_i(stmt, 1),
                                      col_i(stmt, 2), col_i(stmt, 3) };
        if (keeps[count].queue == NULL)
            break;
        count++;
    }
    (void)sqlite3_reset(stmt);
    return r < 0 ? r : count;
}

static int expire_all(struct store *store, const struct keep *keeps, int count)
{
    int removed = 0, r = 0;
    for (int i = 0; r >= 0 && i < count && store->rows < STORE_TX_ROWS; i++) {
        r = store_expire(store, keeps[i].queue, keeps[i].state, keeps[i].ms, keeps[i].count, 64);
        removed += MAX(r, 0);
    }
    return r < 0 ? r : removed;
}

static int retention(struct store *store, struct broker_req *req)
{
    struct keep keeps[256];
    store->rc = SQLITE_OK;
    int count = read_keeps(store, keeps);
    if (count <= 0)
        return count < 0 ? store_error(store, &req->err) : 0;

    int r = store_begin(store, &req->err);
    if (r == 0) {
        r = expire_all(store, keeps, count);
        if (r < 0) {
            r = store_error(store, &req->err);
            store_rollback(store);
        } else {
            req->recover.removed += (size_t)r;
            r = store_commit(store, &req->err);
        }
    }
    for (int i = 0; i < count; i++)
        free(keeps[i].queue);
    return r;
}

/* Files of removed jobs that an earlier process did not get to. */
static int left_files(struct store *store, struct broker_req *req)
{
    if (store->doomed_count == 0) {
        int r;
        store->rc = SQLITE_OK;
        sqlite3_stmt *stmt = store_stmt(store, STMT_DOOMED);
        bind_i(stmt, 1, RECOVER_FILES);
        while ((r = store_step(store, stmt)) == 1 && store_note_doomed(store, col_i(stmt, 0)) == 0)
            ;
        (void)sqlite3_reset(stmt);
        if (r < 0)
            return store_error(store, &req->err);
    }
    store_remove_doomed(store, RECOVER_FILES);
    return 0;
}

static int is_registered(const char *name, void *arg)
{
    struct store *store = arg;
    sqlite3_stmt *stmt = store_stmt(store, STMT_WORKER_KNOWN);

    bind_s(stmt, 1, name);
    int r = store_step(store, stmt);
    if (r == 1)
        (void)sqlite3_reset(stmt);
    return r;
}

/* What remains of workers that no row names: killed before they had registered, or while they signed off.  Those who are
 * registered are dead_workers()' own. */
static int traces(struct store *store, struct broker_req *req)
{
    store->rc = SQLITE_OK;
    int r = data_dir_sweep(store->data_dir, store->worker, is_registered, store, req->recover.empty,
                           req->recover.arg);
    return r < 0 ? store_error(store, &req->err) : 0;
}

int store_recover(struct store *store, struct broker_req *req)
{
    req->recover.due = req->recover.recovered = req->recover.removed = 0;
    int r = due(store, req);
    if (r == 0)
        r = dead_workers(store, req);
    if (r == 0)
        r = orphans(store, req);
    if (r == 0)
        r = retention(store, req);
    if (r == 0)
        r = left_files(store, req);
    if (r == 0 && store->recover_turn++ % RECOVER_TRACES == 0)
        r = traces(store, req);
    return r;
}
