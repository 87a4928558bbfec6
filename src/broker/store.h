/* store.h - one connection to the SQLite file of a queue: schema, statements, transactions, and one function a request.
 * Private to the sqlite broker.  Blocking: everything here runs on the broker's own thread (store_open on the opener's).
 *
 *     store_begin ─▶ store_add, store_lease, … (any number) ─▶ store_commit ─▶ store_sync ─▶ answers that promise durability
 *
 * A request's function returns 0, -errno with req->err filled and *nothing written*, or STORE_MORE: commit, then call it again.
 * When SQLite itself fails, store->rc says so and the whole transaction has to be rolled back.
 *
 * Durability: the connection runs with synchronous=NORMAL, in which a commit appends to the write-ahead log without a sync, so
 * that leases and starts never wait for the disk.  Whoever answers "durable" calls fdatasync(2) on the log first, after the
 * commit and outside of the turnstile: see wal.h for why that is enough.
 */
#ifndef BROKER_STORE_H
#define BROKER_STORE_H

#include <sqlite3.h>

#include "broker/broker.h"
#include "broker/turnstile.h"

#define STORE_MORE           1
#define STORE_LEASE_MS       30000    /* BOOTTIME; unless REGISTER says otherwise */
#define STORE_TX_ROWS        1000     /* rows written in one transaction, about */
#define STORE_TX_NS          50000000 /* no new request joins a transaction older than that */
#define STORE_HISTORY_MAX    100      /* earlier attempts kept in a job's record */
#define STORE_EXPIRE_MAX     400      /* jobs that retention deletes in one go */
#define STORE_BUSY_MS        5000 /* patience with foreign programs that do not know the turnstile */
#define STORE_APPLICATION_ID 0x6d616e64 /* "mand" */

enum store_stmt {
#define STMT(name, sql) STMT_##name,
#include "broker/store_sql.def"
#undef STMT
    STMTS
};

struct store {
    sqlite3 *db;
    char *path, *data_dir;
    char worker[64];  /* this worker's name once it has registered; "" before */
    int64_t lease_ms; /* of its leases */
    struct turnstile turnstile;
    sqlite3_stmt *stmts[STMTS];
    int rc;   /* SQLite's (extended) result when it failed in this transaction, else SQLITE_OK */
    int rows; /* written in this transaction */
    bool in_tx;
    bool wake; /* what was committed may concern workers; wake_send() clears it */
    size_t cursor, cursor_before; /* how far the request that returned STORE_MORE has come */
    int wal_pages;                /* length of the log after the last commit */
    bool written;                 /* something has been written since the owner cleared this */
    int64_t *doomed;              /* ids of removed jobs whose output directories are still there */
    size_t doomed_count, doomed_cap, doomed_before; /* before: at the start of this transaction */
    unsigned lease_turn, settle_turn, recover_turn;
    char *keep_seen; /* the retention that this process wrote down last */
};

/* Open, check, and where needed make or migrate the queue at path (absolute).  worker: see broker_open(). */
MUST_CHECK int store_open(const char *path, bool worker, struct store **ret,
                          struct mandor_err *err);
struct store *store_free(struct store *store);
DEFINE_CLEANUP(struct store *, store_free)

/* Take the turn and begin; write everything and give the turn back.  After a failure of either the transaction is over. */
MUST_CHECK int store_begin(struct store *store, struct mandor_err *err);
MUST_CHECK int store_commit(struct store *store, struct mandor_err *err);
void store_rollback(struct store *store);

/* ---- for the files that implement requests ---- */

/* The statement, reset and without bindings; NULL when SQLite cannot prepare it (store->rc is set). */
sqlite3_stmt *store_stmt(struct store *store, enum store_stmt which);
/* 1: a row; 0: done; < 0: SQLite failed (store->rc is set, the code is -errno). */
MUST_CHECK int store_step(struct store *store, sqlite3_stmt *stmt);
/* Fill err from store->rc: which file, what happened, what to do.  Returns -errno. */
int store_error(const struct store *store, struct mandor_err *err);
/* Run a statement with one integer or text binding (?1); 0 or -errno. */
MUST_CHECK int store_run_i(struct store *store, enum store_stmt which, int64_t value);
MUST_CHECK int store_run_s(struct store *store, enum store_stmt which, const char *text);

void bind_i(sqlite3_stmt *stmt, int index, int64_t value);
/* NULL = null; borrowed until the next store_stmt(). */
void bind_s(sqlite3_stmt *stmt, int index, const char *text);
const char *col_s(sqlite3_stmt *stmt, int column); /* NULL when null */
int64_t col_i(sqlite3_stmt *stmt, int column);

/* The clocks as the store sees them; tests move them with the offsets. */
int64_t store_wall_ms(void);
int64_t store_boot_ms(void);
const char *store_boot_id(void);
extern int64_t store_test_wall_offset_ms, store_test_boot_offset_ms;
extern const char *store_test_boot_id;

/* Parse a job's id.  -ENOENT with *err when it cannot be one of ours. */
MUST_CHECK int store_job_id(const char *text, int64_t *ret, struct mandor_err *err);
#define STORE_ID_SIZE 24

MUST_CHECK int store_note_doomed(struct store *store, int64_t id);
/* Remove up to max doomed directories (outside of a transaction); store_begin() then forgets them. */
void store_remove_doomed(struct store *store, size_t max);

/* ---- one function a request; in a transaction unless noted ---- */

int store_add(struct store *store, struct broker_req *req);
int store_lease(struct store *store, struct broker_req *req);
int store_start(struct store *store, struct broker_req *req);
int store_renew(struct store *store, struct broker_req *req);
int store_begin_settle(struct store *store, struct broker_req *req);
int store_settle(struct store *store, struct broker_req *req);
int store_give_back(struct store *store, struct broker_req *req);
int store_phase(struct store *store, struct broker_req *req);
int store_register(struct store *store, struct broker_req *req);
int store_unregister(struct store *store, struct broker_req *req);
int store_pause(struct store *store, struct broker_req *req);
int store_change(struct store *store, struct broker_req *req); /* cancel, retry, remove one job */
/* … all of a state; its own transactions. */
int store_change_all(struct store *store, struct broker_req *req);
int store_recover(struct store *store, struct broker_req *req); /* its own transactions */
/* The rest: outside of a transaction. */
int store_show(struct store *store, struct broker_req *req);
int store_list(struct store *store, struct broker_req *req);
int store_output(struct store *store, struct broker_req *req);
int store_stats(struct store *store, struct broker_req *req);

/* Due delayed jobs of queue → waiting, at most `limit`.  Returns how many or -errno. */
int store_promote(struct store *store, const char *queue, int limit);
/* Delete what retention no longer keeps of queue and state, at most limit jobs.  Returns how many or -errno. */
int store_expire(struct store *store, const char *queue, enum job_state state, int64_t keep_ms,
                 int64_t keep_count, int limit);
/* What is held by a job row in a verdict; shared by settle and recover. */
struct store_end {
    int64_t id;
    struct retry_plan plan;
    bool cancel_requested;
    int64_t attempts_used, put_backs; /* before this end */
    int64_t started_ms, finished_ms;
    const char *attempt_text; /* JSON */
};
/* Write the end of an attempt; *ret_state is what the job became.  0 or -errno. */
MUST_CHECK int store_end_attempt(struct store *store, const struct store_end *end,
                                 enum job_state *ret_state);

#endif
