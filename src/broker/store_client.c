/* store_client.c - the requests of clients: add, show, list, output, cancel, retry, remove, pause, stats; and retention. */
#include <stdio.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/json.h"
#include "broker/data_dir.h"
#include "broker/store.h"

/* ---- add ---- */

static int existing_id(struct store *store, const struct spec *spec, int64_t *ret)
{
    sqlite3_stmt *stmt = store_stmt(store, STMT_ADD_EXISTING);
    bind_s(stmt, 1, spec->queue);
    bind_s(stmt, 2, spec->unique);
    int r = store_step(store, stmt);
    if (r == 1) {
        *ret = col_i(stmt, 0);
        (void)sqlite3_reset(stmt);
    }
    return r;
}

static int add_one(struct store *store, const struct spec *spec, int64_t wall,
                   struct broker_added *ret)
{
    SCOPED_FREE char *text = spec_to_text(spec);
    if (text == NULL) {
        store->rc = SQLITE_NOMEM;
        return -ENOMEM;
    }

    bool delayed = spec->delay_ms > 0;
    int64_t id = 0;
    sqlite3_stmt *stmt = store_stmt(store, STMT_ADD);
    bind_s(stmt, 1, spec->queue);
    bind_i(stmt, 2, delayed ? JOB_DELAYED : JOB_WAITING);
    bind_i(stmt, 3, spec->priority);
    bind_s(stmt, 4, spec->unique);
    bind_s(stmt, 5, text);
    bind_i(stmt, 6, spec->attempts);
    bind_i(stmt, 7, wall);
    if (delayed) {
        bind_i(stmt, 8, wall + spec->delay_ms);
        bind_i(stmt, 9, store_boot_ms() + spec->delay_ms);
        bind_s(stmt, 10, store_boot_id());
    }
    bind_i(stmt, 11, delayed);
    int r = store_step(store, stmt);
    if (r < 0)
        return r;

    store->rows++;
    ret->existing = sqlite3_changes(store->db) == 0;
    if (!ret->existing)
        id = sqlite3_last_insert_rowid(store->db);
    else if ((r = existing_id(store, spec, &id)) < 0)
        return r;
    (void)snprintf(ret->id, sizeof ret->id, "%" PRId64, id);
    return 0;
}

static bool serves(const char *queues_text, const char *queue)
{
    SCOPED_JSON *queues = NULL;
    if (queues_text == NULL || json_parse(queues_text, strlen(queues_text), &queues, NULL) < 0)
        return false;
    for (size_t i = 0; i < json_array_size(queues); i++) {
        const char *name = json_string_value(json_array_get(queues, i));
        if (name != NULL && str_eq(name, queue))
            return true;
    }
    return json_array_size(queues) == 0;
}

static bool worker_lives(const char *lock_path, const char *boot_id)
{
    int fd;
    if (boot_id == NULL || !str_eq(boot_id, store_boot_id()))
        return false;
    bool alive = data_dir_worker_alive(lock_path, &fd) == 1;
    if (fd >= 0)
        (void)close(fd);
    return alive;
}

/* 1: a live worker serves the queue. */
static int queue_served(struct store *store, const char *queue)
{
    sqlite3_stmt *stmt = store_stmt(store, STMT_WORKERS);
    int r;
    while ((r = store_step(store, stmt)) == 1)
        if (serves(col_s(stmt, 6), queue) && worker_lives(col_s(stmt, 4), col_s(stmt, 3))) {
            (void)sqlite3_reset(stmt);
            return 1;
        }
    return r;
}

/* Once a run of specs of the same queue: note the queue, and look whether somebody serves it. */
static int see_queue(struct store *store, struct broker_req *req, size_t i)
{
    const char *queue = req->add.specs[i]->queue;
    if (i > 0 && str_eq(queue, req->add.specs[i - 1]->queue))
        return 0;

    int r = store_run_s(store, STMT_QUEUE_SEEN, queue);
    if (r < 0 || !req->add.served)
        return r;
    r = queue_served(store, queue);
    req->add.served = r == 1;
    return MIN(r, 0);
}

int store_add(struct store *store, struct broker_req *req)
{
    int64_t wall = store_wall_ms();
    if (store->cursor == 0)
        req->add.served = true;
    for (size_t i = store->cursor; i < req->add.count; i++) {
        if (store->rows >= STORE_TX_ROWS) {
            store->cursor = i;
            return STORE_MORE;
        }
        int r = see_queue(store, req, i);
        if (r == 0)
            r = add_one(store, req->add.specs[i], wall, &req->add.added[i]);
        if (r < 0)
            return store_error(store, &req->err);
        store->wake = true;
    }
    return 0;
}

/* ---- show and list ---- */

/* A record of the row that stmt (STMT_SHOW's columns) stands on. */
static json_t *row_record(sqlite3_stmt *stmt, const json_t *history)
{
    char id[STORE_ID_SIZE];
    SCOPED_JSON *attempt_json = record_stored(col_s(stmt, 15));
    SCOPED_JSON *spec = record_stored(col_s(stmt, 16));
    enum job_state state = (enum job_state)col_i(stmt, 2);

    (void)snprintf(id, sizeof id, "%" PRId64, col_i(stmt, 0));
    return record_json(&(struct record){
        .id = id,
        .queue = col_s(stmt, 1),
        .state = state,
        .phase = state == JOB_ACTIVE ? col_s(stmt, 3) : NULL,
        .attempt = col_i(stmt, 4),
        .attempts_used = col_i(stmt, 5),
        .attempts = col_i(stmt, 6),
        .priority = col_i(stmt, 7),
        .created_ms = col_i(stmt, 8),
        .started_ms = col_i(stmt, 9),
        .finished_ms = col_i(stmt, 10),
        .due_ms = col_i(stmt, 11),
        .worker = col_s(stmt, 12),
        .unique = col_s(stmt, 13),
        .cancel_requested = col_i(stmt, 14) != 0,
        .attempt_json = attempt_json,
        .history = history,
        .spec = spec,
    });
}

/* *ret: new array, or NULL when there were no earlier attempts. */
static int read_history(struct store *store, int64_t id, json_t **ret)
{
    SCOPED_JSON *history = NULL;
    sqlite3_stmt *stmt = store_stmt(store, STMT_HISTORY);
    bind_i(stmt, 1, id);
    int r;
    while ((r = store_step(store, stmt)) == 1) {
        json_t *entry = record_history_entry(col_i(stmt, 0), col_i(stmt, 1), col_s(stmt, 2));
        if (history == NULL)
            history = json_array();
        if (entry == NULL || json_array_append_new(history, entry) < 0) {
            (void)sqlite3_reset(stmt);
            store->rc = SQLITE_NOMEM;
            return -ENOMEM;
        }
    }
    if (r == 0)
        *ret = STEAL(history);
    return r;
}

static int no_job(struct broker_req *req, const char *id)
{
    return err_set(&req->err, -ENOENT, FAULT_CALLER, "no job '%s'", id);
}

/* Stand STMT_SHOW on the job's row. */
static int find_job(struct store *store, struct broker_req *req, const char *id_text,
                    int64_t *ret_id, sqlite3_stmt **ret)
{
    int r = store_job_id(id_text, ret_id, &req->err);
    if (r < 0)
        return r;
    sqlite3_stmt *stmt = store_stmt(store, STMT_SHOW);
    bind_i(stmt, 1, *ret_id);
    r = store_step(store, stmt);
    if (r < 0)
        return store_error(store, &req->err);
    if (r == 0)
        return no_job(req, id_text);
    *ret = stmt;
    return 0;
}

int store_show(struct store *store, struct broker_req *req)
{
    int64_t id = 0;
    sqlite3_stmt *stmt = NULL;
    SCOPED_JSON *history = NULL;

    req->show.record = NULL;
    int r = find_job(store, req, req->show.id, &id, &stmt);
    if (r != 0)
        return r;
    if (read_history(store, id, &history) < 0) {
        (void)sqlite3_reset(stmt);
        return store_error(store, &req->err);
    }
    req->show.record = row_record(stmt, history);
    (void)sqlite3_reset(stmt);
    return req->show.record != NULL
               ? 0
               : err_set(&req->err, -ENOMEM, FAULT_HOST, "show job %s", req->show.id);
}

/* The ids that a page or a bulk change is about, by the partial index of the state: SELECT text, ?1 queue, ?2 id bound, ?3 limit. */
static int prepare_ids(struct store *store, const char *queue, int state, const char *bound,
                       sqlite3_stmt **ret)
{
    char sql[512], where[48] = "";

    if (state >= JOB_COMPLETED)
        (void)snprintf(where, sizeof where, "state>=3 AND state=%d AND", state);
    else if (state >= 0)
        (void)snprintf(where, sizeof where, "state=%d AND", state);
    (void)snprintf(sql, sizeof sql,
                   "SELECT id FROM jobs WHERE %s %s id%s?2 ORDER BY id %s LIMIT ?3", where,
                   queue != NULL ? "queue=?1 AND" : "", bound, bound[0] == '<' ? "DESC" : "ASC");
    int rc = sqlite3_prepare_v2(store->db, sql, -1, ret, NULL);
    if (rc != SQLITE_OK) {
        store->rc = rc;
        return store_error(store, NULL);
    }
    bind_s(*ret, 1, queue);
    return 0;
}

static void finalize_cleanup(sqlite3_stmt **stmt)
{
    (void)sqlite3_finalize(*stmt);
}
#define SCOPED_STMT __attribute__((cleanup(finalize_cleanup), unused)) sqlite3_stmt

static int append_record(struct store *store, int64_t id, json_t *records)
{
    sqlite3_stmt *stmt = store_stmt(store, STMT_SHOW);
    bind_i(stmt, 1, id);
    int r = store_step(store, stmt);
    if (r <= 0) /* removed by another process since the list was read */
        return r;

    json_t *record = row_record(stmt, NULL);
    (void)sqlite3_reset(stmt);
    (void)json_object_del(record, "history"); /* not looked up for a list: absent, not null */
    if (record != NULL && json_array_append_new(records, record) == 0)
        return 0;
    store->rc = SQLITE_NOMEM;
    return -ENOMEM;
}

int store_list(struct store *store, struct broker_req *req)
{
    int64_t after = INT64_MAX;
    SCOPED_STMT *ids = NULL;
    SCOPED_JSON *records = json_array();

    req->list.records = NULL;
    store->rc = SQLITE_OK;
    if (records == NULL)
        return err_set(&req->err, -ENOMEM, FAULT_HOST, "list jobs");
    if (req->list.after != NULL) {
        int r = store_job_id(req->list.after, &after, &req->err);
        if (r < 0)
            return r;
    }
    int r = prepare_ids(store, req->list.queue, req->list.state, "<", &ids);
    if (r < 0)
        return store_error(store, &req->err);
    bind_i(ids, 2, after);
    bind_i(ids, 3, (int64_t)MIN(req->list.limit, (size_t)INT32_MAX));
    while ((r = store_step(store, ids)) == 1 && append_record(store, col_i(ids, 0), records) == 0)
        ;
    if (r != 0)
        return store_error(store, &req->err);
    req->list.records = STEAL(records);
    return 0;
}

/* ---- output ---- */

/* Where the attempt's json says that the stream is.  1: *ret_path set; 0: not in a file; *ret_inline: it was an auto: sink. */
static int output_place(const json_t *attempt_json, const char *stream, char **ret_path,
                        bool *ret_inline)
{
    json_t *of = json_object_get(json_object_get(attempt_json, "streams"), stream);
    const char *sink = json_string_value(json_object_get(of, "sink"));
    const char *target = json_string_value(json_object_get(of, "target"));

    *ret_inline = sink != NULL && str_eq(sink, "auto") && target == NULL;
    if (target == NULL || target[0] != '/' || !json_is_true(json_object_get(of, "committed")))
        return 0;
    *ret_path = strdup(target);
    return *ret_path != NULL ? 1 : -ENOMEM;
}

static int inline_output(struct store *store, int64_t id, int64_t attempt, struct broker_req *req)
{
    sqlite3_stmt *stmt = store_stmt(store, STMT_OUTPUT_GET);
    bind_i(stmt, 1, id);
    bind_i(stmt, 2, attempt);
    bind_i(stmt, 3, req->output.want_stderr ? 2 : 1);
    int r = store_step(store, stmt);
    if (r <= 0)
        return r;

    size_t len = (size_t)sqlite3_column_bytes(stmt, 0);
    req->output.bytes = malloc(len + 1);
    if (req->output.bytes == NULL) {
        store->rc = SQLITE_NOMEM;
        r = -ENOMEM;
    } else {
        memcpy(req->output.bytes, sqlite3_column_blob(stmt, 0), len);
        req->output.bytes[len] = '\0';
        req->output.len = len;
    }
    (void)sqlite3_reset(stmt);
    return r;
}

static int ended_output(struct store *store, int64_t id, const json_t *attempt_json,
                        struct broker_req *req)
{
    bool was_inline = false;
    int r = inline_output(store, id, req->output.attempt_out, req);
    if (r != 0)
        return MIN(r, 0);

    r = output_place(attempt_json, req->output.want_stderr ? "stderr" : "stdout", &req->output.path,
                     &was_inline);
    if (r == 0 && was_inline && (req->output.bytes = strdup("")) == NULL)
        r = -ENOMEM;
    if (r == -ENOMEM)
        store->rc = SQLITE_NOMEM;
    return MIN(r, 0);
}

static int earlier_json(struct store *store, int64_t id, int64_t attempt, json_t **ret)
{
    sqlite3_stmt *stmt = store_stmt(store, STMT_ATTEMPT_JSON);
    bind_i(stmt, 1, id);
    bind_i(stmt, 2, attempt);
    int r = store_step(store, stmt);
    if (r == 1) {
        *ret = record_stored(col_s(stmt, 0));
        (void)sqlite3_reset(stmt);
    }
    return r;
}

int store_output(struct store *store, struct broker_req *req)
{
    int64_t id = 0;
    sqlite3_stmt *stmt = NULL;
    SCOPED_JSON *json = NULL;

    req->output.bytes = req->output.path = NULL;
    req->output.len = 0;
    req->output.active = false;
    req->output.worker[0] = '\0';
    int r = find_job(store, req, req->output.id, &id, &stmt);
    if (r != 0)
        return r;

    int64_t attempt = col_i(stmt, 4), ended = col_i(stmt, 18), asked = req->output.attempt;
    bool running = col_i(stmt, 2) == JOB_ACTIVE && col_i(stmt, 17) != 0;
    int64_t which = asked != 0 ? asked : running ? attempt : ended;
    req->output.attempt_out = which;
    if (running && which == attempt) {
        const char *worker = col_s(stmt, 12);
        req->output.active = true;
        (void)snprintf(req->output.worker, sizeof req->output.worker, "%s",
                       worker != NULL ? worker : "");
    } else if (which == ended && ended > 0) {
        json = record_stored(col_s(stmt, 15));
    }
    (void)sqlite3_reset(stmt);

    if (req->output.active)
        return 0;
    if (which < 0 || which > attempt)
        return err_set(&req->err, -ENOENT, FAULT_CALLER,
                       "job %s has no attempt %" PRId64 ", it was started %" PRId64 " times",
                       req->output.id, which, attempt);
    r = json == NULL && which > 0 ? earlier_json(store, id, which, &json) : 0;
    if (r >= 0)
        r = ended_output(store, id, json, req);
    return r < 0 ? store_error(store, &req->err) : 0;
}

/* ---- removal ---- */

static bool has_files(const struct store *store, int64_t id)
{
    char path[PATH_MAX];
    (void)snprintf(path, sizeof path, "%s/output/%" PRId64, store->data_dir, id);
    return access(path, F_OK) == 0;
}

int store_note_doomed(struct store *store, int64_t id)
{
    if (store->doomed_count == store->doomed_cap) {
        size_t cap = MAX(store->doomed_cap * 2, (size_t)64);
        int64_t *more = realloc(store->doomed, cap * sizeof *more);
        if (more == NULL) {
            store->rc = SQLITE_NOMEM;
            return -ENOMEM;
        }
        store->doomed = more;
        store->doomed_cap = cap;
    }
    store->doomed[store->doomed_count++] = id;
    return 0;
}

/* With its earlier attempts and its inline output; its output directory is noted as doomed. */
static int delete_job(struct store *store, int64_t id)
{
    int r = store_run_i(store, STMT_DELETE, id);
    if (r == 0)
        r = store_run_i(store, STMT_DELETE_ATTEMPTS, id);
    if (r == 0)
        r = store_run_i(store, STMT_DELETE_OUTPUTS, id);
    if (r == 0 && has_files(store, id)) {
        r = store_run_i(store, STMT_DOOM, id);
        if (r == 0)
            r = store_note_doomed(store, id);
    }
    store->rows += 3;
    return r;
}

/* ---- cancel, retry, remove ---- */

static int refuse(struct broker_req *req, const char *id, const char *what, enum job_state state)
{
    return err_set(&req->err, -EBUSY, FAULT_CALLER, "job %s cannot be %s: it is %s", id, what,
                   job_state_name(state));
}

static int cancel_one(struct store *store, struct broker_req *req, int64_t id, const char *id_text,
                      enum job_state state)
{
    if (job_state_final(state))
        return refuse(req, id_text, "cancelled", state);

    sqlite3_stmt *stmt =
        store_stmt(store, state == JOB_ACTIVE ? STMT_CANCEL_ACTIVE : STMT_CANCEL_IDLE);
    bind_i(stmt, 1, id);
    if (state != JOB_ACTIVE)
        bind_i(stmt, 2, store_wall_ms());
    store->wake = true;
    return store_step(store, stmt) < 0 ? store_error(store, &req->err) : 0;
}

static int retry_one(struct store *store, struct broker_req *req, int64_t id, const char *id_text,
                     enum job_state state)
{
    if (!job_state_final(state))
        return refuse(req, id_text, "retried", state);

    if (store_run_i(store, STMT_RETRY, id) < 0)
        return store_error(store, &req->err);
    if (sqlite3_changes(store->db) == 0)
        return err_set(&req->err, -EBUSY, FAULT_CALLER,
                       "job %s cannot be retried: another job holds its unique key", id_text);
    store->wake = true;
    return 0;
}

static int remove_one(struct store *store, struct broker_req *req, int64_t id, const char *id_text,
                      enum job_state state)
{
    if (state == JOB_ACTIVE)
        return refuse(req, id_text, "removed", state);
    return delete_job(store, id) < 0 ? store_error(store, &req->err) : 0;
}

static int change_id(struct store *store, struct broker_req *req, int64_t id, const char *id_text,
                     int want_state)
{
    sqlite3_stmt *stmt = store_stmt(store, STMT_HELD);
    bind_i(stmt, 1, id);
    int r = store_step(store, stmt);
    if (r <= 0)
        return r < 0 ? store_error(store, &req->err) : no_job(req, id_text);
    enum job_state state = (enum job_state)col_i(stmt, 0);
    const char *worker = col_s(stmt, 1);
    if (state == JOB_ACTIVE && worker != NULL)
        (void)snprintf(req->change.worker, sizeof req->change.worker, "%s", worker);
    (void)sqlite3_reset(stmt);
    if (want_state >= 0 && (int)state != want_state)
        return no_job(req, id_text);

    if (req->op == BROKER_CANCEL)
        r = cancel_one(store, req, id, id_text, state);
    else if (req->op == BROKER_RETRY)
        r = retry_one(store, req, id, id_text, state);
    else
        r = remove_one(store, req, id, id_text, state);
    if (r == 0) {
        store->rows++;
        req->change.count++;
    }
    return r;
}

int store_change(struct store *store, struct broker_req *req)
{
    int64_t id = 0;
    req->change.count = 0;
    req->change.worker[0] = '\0';
    int r = store_job_id(req->change.id, &id, &req->err);
    return r < 0 ? r : change_id(store, req, id, req->change.id, -1);
}

/* All ids first, outside of a transaction, so that no transaction is long however many jobs there are. */
static int read_ids(struct store *store, struct broker_req *req, int64_t **ret, size_t *ret_count)
{
    SCOPED_STMT *stmt = NULL;
    SCOPED_FREE int64_t *ids = NULL;
    size_t count = 0, cap = 0;

    int r = prepare_ids(store, req->change.queue, req->change.state, ">", &stmt);
    if (r < 0)
        return r;
    bind_i(stmt, 2, 0);
    bind_i(stmt, 3, -1);
    while ((r = store_step(store, stmt)) == 1) {
        if (count == cap) {
            cap = MAX(cap * 2, (size_t)256);
            int64_t *more = realloc(ids, cap * sizeof *ids);
            if (more == NULL) {
                store->rc = SQLITE_NOMEM;
                return -ENOMEM;
            }
            ids = more;
        }
        ids[count++] = col_i(stmt, 0);
    }
    *ret = STEAL(ids);
    *ret_count = count;
    return r;
}

static int change_some(struct store *store, struct broker_req *req, const int64_t *ids,
                       size_t count)
{
    size_t before = req->change.count;
    int r = store_begin(store, &req->err);
    if (r < 0)
        return r;
    for (size_t i = 0; i < count; i++) {
        char text[STORE_ID_SIZE];
        (void)snprintf(text, sizeof text, "%" PRId64, ids[i]);
        r = change_id(store, req, ids[i], text, req->change.state);
        if (r < 0 && store->rc != SQLITE_OK) {
            store_rollback(store);
            req->change.count = before;
            return r;
        } /* else: it changed meanwhile, or is refused in this state: not counted */
    }
    r = store_commit(store, &req->err);
    if (r < 0)
        req->change.count = before;
    else
        err_clear(&req->err);
    return r;
}

int store_change_all(struct store *store, struct broker_req *req)
{
    SCOPED_FREE int64_t *ids = NULL;
    size_t count = 0;

    req->change.count = 0;
    req->change.worker[0] = '\0';
    store->rc = SQLITE_OK;
    if (read_ids(store, req, &ids, &count) < 0)
        return store_error(store, &req->err);
    for (size_t i = 0; i < count; i += 250) {
        int r = change_some(store, req, ids + i, MIN(count - i, (size_t)250));
        if (r < 0)
            return r;
        store_remove_doomed(store, 250);
    }
    req->change.worker[0] = '\0';
    return 0;
}

/* ---- retention ---- */

void store_remove_doomed(struct store *store, size_t max)
{
    size_t count = MIN(store->doomed_count, max), done = 0;
    if (count == 0)
        return;

    for (; done < count; done++) {
        char id[STORE_ID_SIZE];
        (void)snprintf(id, sizeof id, "%" PRId64, store->doomed[store->doomed_count - 1 - done]);
        data_dir_remove_output(store->data_dir, id);
    }
    if (store_begin(store, NULL) < 0)
        return; /* the rows stay, and the next recover asks again */
    for (size_t i = 0; i < done; i++)
        if (store_run_i(store, STMT_UNDOOM, store->doomed[store->doomed_count - 1 - i]) < 0) {
            store_rollback(store);
            return;
        }
    if (store_commit(store, NULL) == 0)
        store->doomed_count -= done;
}

static int64_t count_final(struct store *store, const char *queue, enum job_state state,
                           int64_t limit)
{
    sqlite3_stmt *stmt = store_stmt(store, STMT_COUNT_FINAL);
    bind_s(stmt, 1, queue);
    bind_i(stmt, 2, limit);
    bind_i(stmt, 3, state);
    int r = store_step(store, stmt);
    if (r != 1)
        return r;
    int64_t count = col_i(stmt, 0);
    (void)sqlite3_reset(stmt);
    return count;
}

int store_expire(struct store *store, const char *queue, enum job_state state, int64_t keep_ms,
                 int64_t keep_count, int limit)
{
    int64_t excess = 0, cutoff = keep_ms > 0 ? store_wall_ms() - keep_ms : INT64_MIN;
    int64_t ids[STORE_EXPIRE_MAX];
    int found = 0, r = 0;

    if (keep_count > 0 && keep_count < INT64_MAX - limit) {
        int64_t count = count_final(store, queue, state, keep_count + limit);
        if (count < 0)
            return (int)count;
        excess = count - keep_count;
    }
    sqlite3_stmt *stmt = store_stmt(store, STMT_OLDEST_FINAL);
    bind_s(stmt, 1, queue);
    bind_i(stmt, 2, state);
    bind_i(stmt, 3, MIN(limit, (int)ARRAY_LEN(ids)));
    while ((r = store_step(store, stmt)) == 1 && (found < excess || col_i(stmt, 1) < cutoff))
        ids[found++] = col_i(stmt, 0);
    (void)sqlite3_reset(stmt);

    for (int i = 0; r >= 0 && i < found; i++)
        r = delete_job(store, ids[i]);
    return r < 0 ? r : found;
}

/* ---- queues and statistics ---- */

int store_pause(struct store *store, struct broker_req *req)
{
    sqlite3_stmt *stmt = store_stmt(store, STMT_PAUSE);
    bind_s(stmt, 1, req->pause.queue);
    bind_i(stmt, 2, req->pause.paused);
    store->rows++;
    store->wake = true;
    return store_step(store, stmt) < 0 ? store_error(store, &req->err) : 0;
}

static json_t *new_queue(bool paused)
{
    return json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:b, s:n}", "waiting", 0, "delayed", 0,
                     "active", 0, "completed", 0, "failed", 0, "cancelled", 0, "paused",
                     (int)paused, "oldest_waiting_ms");
}

static json_t *queue_of(json_t *queues, const char *name)
{
    json_t *queue = json_object_get(queues, name);
    if (queue == NULL) {
        queue = new_queue(false);
        if (json_object_set_new(queues, name, queue) < 0)
            return NULL;
    }
    return queue;
}

static int stat_queues(struct store *store, json_t *queues)
{
    int r;
    sqlite3_stmt *stmt = store_stmt(store, STMT_QUEUES);
    while ((r = store_step(store, stmt)) == 1)
        (void)json_object_set_new(queues, col_s(stmt, 0), new_queue(col_i(stmt, 1) != 0));
    if (r < 0)
        return r;

    stmt = store_stmt(store, STMT_COUNTS);
    while ((r = store_step(store, stmt)) == 1) {
        json_t *queue = queue_of(queues, col_s(stmt, 0));
        (void)json_object_set_new(queue, job_state_name((enum job_state)col_i(stmt, 1)),
                                  json_integer(col_i(stmt, 2)));
        if (col_i(stmt, 1) == JOB_WAITING) /* how long the oldest has been waiting */
            (void)json_object_set_new(
                queue, "oldest_waiting_ms",
                json_integer(MAX(store_wall_ms() - col_i(stmt, 3), (int64_t)0)));
    }
    return r;
}

static int stat_workers(struct store *store, json_t *workers)
{
    int r;
    char when[CLOCK_RFC3339_SIZE];
    sqlite3_stmt *stmt = store_stmt(store, STMT_WORKERS);
    while ((r = store_step(store, stmt)) == 1)
        (void)json_array_append_new(
            workers,
            json_pack("{s:s, s:I, s:s, s:o, s:s, s:b}", "name", col_s(stmt, 0), "pid",
                      (json_int_t)col_i(stmt, 1), "host", col_s(stmt, 2), "queues",
                      record_stored(col_s(stmt, 6)), "since", clock_rfc3339(col_i(stmt, 7), when),
                      "alive", (int)worker_lives(col_s(stmt, 4), col_s(stmt, 3))));
    return r;
}

int store_stats(struct store *store, struct broker_req *req)
{
    SCOPED_JSON *queues = json_object(), *workers = json_array();

    req->stats.stats = NULL;
    if (queues == NULL || workers == NULL)
        return err_set(&req->err, -ENOMEM, FAULT_HOST, "count jobs");
    if (stat_queues(store, queues) < 0 || stat_workers(store, workers) < 0)
        return store_error(store, &req->err);
    req->stats.stats = json_pack("{s:O, s:O}", "queues", queues, "workers", workers);
    return req->stats.stats != NULL ? 0 : err_set(&req->err, -ENOMEM, FAULT_HOST, "count jobs");
}
