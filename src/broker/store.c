/* store.c - contract in store.h: opening, schema, statements, transactions, errors. */
#include "broker/store.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "broker/data_dir.h"

_Static_assert(JOB_WAITING == 0 && JOB_DELAYED == 1 && JOB_ACTIVE == 2 && JOB_COMPLETED == 3 &&
                   JOB_FAILED == 4 && JOB_CANCELLED == 5,
               "store_sql.def and the schema write these numbers");

static const char *const stmt_sql[STMTS] = {
#define STMT(name, sql) [STMT_##name] = sql,
#include "broker/store_sql.def"
#undef STMT
};

/* migrations[n] leads from user_version n to n + 1.  Never edit one that was released: add the next. */
static const char *const migrations[] = {
    "CREATE TABLE jobs("
    " id INTEGER PRIMARY KEY AUTOINCREMENT," /* an id that was removed is never given again */
    " queue TEXT NOT NULL,"
    " state INTEGER NOT NULL,"
    " priority INTEGER NOT NULL,"
    " attempt INTEGER NOT NULL DEFAULT 0," /* starts; the fencing token */
    " started INTEGER NOT NULL DEFAULT 0," /* active: this attempt has been started */
    " cancel_requested INTEGER NOT NULL DEFAULT 0,"
    " attempts_used INTEGER NOT NULL DEFAULT 0,"
    " attempts INTEGER NOT NULL,"
    " put_backs INTEGER NOT NULL DEFAULT 0,"
    " ended_attempt INTEGER NOT NULL DEFAULT 0," /* the attempt that attempt_json tells of */
    " user_delay INTEGER NOT NULL DEFAULT 0,"    /* delayed by whoever added it, not by a retry */
    " worker TEXT,"
    " lease_until_ms INTEGER," /* CLOCK_BOOTTIME of boot lease_boot_id */
    " lease_boot_id TEXT,"
    " due_wall_ms INTEGER," /* decides after a reboot only */
    " due_boot_ms INTEGER," /* decides in boot due_boot_id */
    " due_boot_id TEXT,"
    " created_ms INTEGER NOT NULL,"
    " started_ms INTEGER,"
    " ended_ms INTEGER," /* of the last attempt */
    " finished_ms INTEGER,"
    " phase TEXT,"
    " containment TEXT,"
    " unique_key TEXT,"
    " spec TEXT NOT NULL,"
    " attempt_json TEXT"
    ") STRICT;"
    "CREATE INDEX jobs_ready ON jobs(queue,priority,id) WHERE state=0;"
    "CREATE INDEX jobs_due ON jobs(queue,due_boot_id,due_boot_ms) WHERE state=1;"
    "CREATE INDEX jobs_due_wall ON jobs(due_wall_ms) WHERE state=1;"
    "CREATE INDEX jobs_retry ON jobs(queue) WHERE state=1 AND user_delay=0;"
    "CREATE INDEX jobs_active ON jobs(worker,queue) WHERE state=2;"
    "CREATE INDEX jobs_final ON jobs(queue,state,finished_ms) WHERE state>=3;"
    "CREATE UNIQUE INDEX jobs_unique ON jobs(queue,unique_key) WHERE unique_key IS NOT NULL "
    "AND state<3;"
    "CREATE TABLE attempts(job INTEGER NOT NULL, attempt INTEGER NOT NULL, ended_ms INTEGER, "
    "json TEXT NOT NULL,"
    " PRIMARY KEY(job,attempt)) STRICT, WITHOUT ROWID;"
    "CREATE TABLE outputs(job INTEGER NOT NULL, attempt INTEGER NOT NULL, stream INTEGER NOT "
    "NULL," /* 1 stdout, 2 stderr */
    " bytes BLOB NOT NULL, PRIMARY KEY(job,attempt,stream)) STRICT, WITHOUT ROWID;"
    "CREATE TABLE queues(name TEXT PRIMARY KEY, paused INTEGER NOT NULL DEFAULT 0) STRICT, "
    "WITHOUT ROWID;"
    "CREATE TABLE workers(name TEXT PRIMARY KEY, pid INTEGER NOT NULL, host TEXT NOT NULL, "
    "boot_id TEXT NOT NULL,"
    " lock_path TEXT NOT NULL, containment TEXT NOT NULL, queues TEXT NOT NULL, since_ms "
    "INTEGER NOT NULL) STRICT, WITHOUT ROWID;"
    "CREATE TABLE retention(queue TEXT NOT NULL, state INTEGER NOT NULL, keep_ms INTEGER NOT "
    "NULL,"
    " keep_count INTEGER NOT NULL, PRIMARY KEY(queue,state)) STRICT, WITHOUT ROWID;"
    "CREATE TABLE doomed(job INTEGER PRIMARY KEY) STRICT;", /* removed jobs whose files are still there */
};

/* ---- clocks ---- */

int64_t store_test_wall_offset_ms, store_test_boot_offset_ms;
const char *store_test_boot_id;

int64_t store_wall_ms(void)
{
    return clock_wall_ms() + store_test_wall_offset_ms;
}

int64_t store_boot_ms(void)
{
    return clock_boot_ms() + store_test_boot_offset_ms;
}

const char *store_boot_id(void)
{
    return store_test_boot_id != NULL ? store_test_boot_id : clock_boot_id();
}

/* ---- errors ---- */

static int errno_of(int rc)
{
    switch (rc & 0xff) {
    case SQLITE_FULL:
        return -ENOSPC;
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
    case SQLITE_PROTOCOL: /* likewise, in the moments of opening */
        return -EBUSY;
    case SQLITE_READONLY:
        return -EROFS;
    case SQLITE_PERM:
    case SQLITE_AUTH:
    case SQLITE_CANTOPEN:
        return -EACCES;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
        return -EBADMSG;
    case SQLITE_NOMEM:
        return -ENOMEM;
    case SQLITE_TOOBIG:
        return -E2BIG;
    case SQLITE_IOERR:
        return -EIO;
    default:
        return -EPROTO;
    }
}

/* What a person can do about it. */
static const char *advice(int code)
{
    switch (code) {
    case -ENOSPC:
        return "no space is left for it: free some, mandor then goes on by itself";
    case -EBUSY:
        return "another program (not mandor) holds its write lock: end that program's transaction";
    case -EROFS:
        return "it cannot be written: check that the file, its '-wal' and '-shm' and their "
               "directory are writable";
    case -EACCES:
        return "it cannot be opened: check the path and the permissions of the file and its "
               "directory";
    case -EBADMSG:
        return "it is not a sound SQLite file: move it away, and save what is left with 'sqlite3 "
               "FILE .recover'";
    case -EIO:
        return "reading or writing it failed: check the disk";
    default:
        return NULL;
    }
}

int store_error(const struct store *store, struct mandor_err *err)
{
    int code = errno_of(store->rc);
    const char *what = advice(code);

    if (what != NULL)
        return err_set(err, code, FAULT_HOST, "queue file '%s': %s (SQLite %d)", store->path, what,
                       store->rc);
    if (code == -ENOMEM)
        return err_set(err, code, FAULT_HOST, "queue file '%s'", store->path);
    return err_set(err, code, FAULT_BUG, "queue file '%s': %s (SQLite %d)", store->path,
                   store->db != NULL ? sqlite3_errmsg(store->db) : "?", store->rc);
}

static int fail(struct store *store, int rc)
{
    if (store->rc == SQLITE_OK) {
        int extended = store->db != NULL ? sqlite3_extended_errcode(store->db) : rc;
        store->rc = (extended & 0xff) == (rc & 0xff) ? extended : rc;
    }
    return errno_of(store->rc);
}

/* ---- statements ---- */

sqlite3_stmt *store_stmt(struct store *store, enum store_stmt which)
{
    sqlite3_stmt *stmt = store->stmts[which];
    if (stmt != NULL) {
        (void)sqlite3_reset(stmt);
        (void)sqlite3_clear_bindings(stmt);
        return stmt;
    }

    int rc = sqlite3_prepare_v3(store->db, stmt_sql[which], -1, SQLITE_PREPARE_PERSISTENT,
                                &store->stmts[which], NULL);
    if (rc != SQLITE_OK)
        (void)fail(store, rc);
    return store->stmts[which];
}

int store_step(struct store *store, sqlite3_stmt *stmt)
{
    if (stmt == NULL) /* store_stmt() failed */
        return errno_of(store->rc);

    int rc = sqlite3_step(stmt);
    if (rc == SQLITE_ROW)
        return 1;
    if (rc == SQLITE_DONE) {
        (void)sqlite3_reset(stmt);
        return 0;
    }
    int code = fail(store, rc);
    (void)sqlite3_reset(stmt);
    return code;
}

static int run_once(struct store *store, sqlite3_stmt *stmt)
{
    int r = store_step(store, stmt);
    if (r == 1)
        (void)sqlite3_reset(stmt);
    return MIN(r, 0);
}

int store_run_i(struct store *store, enum store_stmt which, int64_t value)
{
    sqlite3_stmt *stmt = store_stmt(store, which);
    bind_i(stmt, 1, value);
    return run_once(store, stmt);
}

int store_run_s(struct store *store, enum store_stmt which, const char *text)
{
    sqlite3_stmt *stmt = store_stmt(store, which);
    bind_s(stmt, 1, text);
    return run_once(store, stmt);
}

/* Binding cannot fail but for a bug or for lack of memory, and a NULL statement is reported by store_step(). */
void bind_i(sqlite3_stmt *stmt, int index, int64_t value)
{
    (void)sqlite3_bind_int64(stmt, index, value);
}

void bind_s(sqlite3_stmt *stmt, int index, const char *text)
{
    if (text != NULL)
        (void)sqlite3_bind_text(stmt, index, text, -1, SQLITE_STATIC);
}

const char *col_s(sqlite3_stmt *stmt, int column)
{
    return (const char *)sqlite3_column_text(stmt, column);
}

int64_t col_i(sqlite3_stmt *stmt, int column)
{
    return sqlite3_column_int64(stmt, column);
}

int store_job_id(const char *text, int64_t *ret, struct mandor_err *err)
{
    int64_t id = 0;
    const char *p = text;

    for (; *p >= '0' && *p <= '9' && p - text < 18; p++)
        id = id * 10 + (*p - '0');
    if (p == text || *p != '\0' || *text == '0')
        return err_set(err, -ENOENT, FAULT_CALLER, "no job '%s'", text);
    *ret = id;
    return 0;
}

/* ---- transactions ---- */

int store_begin(struct store *store, struct mandor_err *err)
{
    int r = turnstile_enter(&store->turnstile);
    if (r < 0)
        return turnstile_complain(&store->turnstile, store->path, r, err);

    store->rc = SQLITE_OK;
    store->rows = 0;
    store->cursor_before = store->cursor;
    store->doomed_before = store->doomed_count;
    if (run_once(store, store_stmt(store, STMT_BEGIN)) < 0) {
        turnstile_leave(&store->turnstile);
        return store_error(store, err);
    }
    store->in_tx = true;
    return 0;
}

int store_commit(struct store *store, struct mandor_err *err)
{
    if (run_once(store, store_stmt(store, STMT_COMMIT)) < 0) {
        int r = store_error(store, err);
        store_rollback(store);
        return r;
    }
    store->in_tx = false;
    turnstile_leave(&store->turnstile);
    return 0;
}

void store_rollback(struct store *store)
{
    if (!store->in_tx)
        return;
    for (int i = 0; i < STMTS; i++) /* a half-read SELECT must not outlive its transaction */
        (void)sqlite3_reset(store->stmts[i]);
    if (sqlite3_get_autocommit(store->db) == 0) /* else SQLite has already rolled back */
        (void)sqlite3_exec(store->db, "ROLLBACK", NULL, NULL, NULL);
    store->in_tx = false;
    turnstile_leave(&store->turnstile);

    store->cursor = store->cursor_before;
    store->doomed_count = store->doomed_before; /* their jobs are back */
    free(store->keep_seen);
    store->keep_seen = NULL;
}

/* ---- opening ---- */

static int exec(struct store *store, const char *sql)
{
    int rc = sqlite3_exec(store->db, sql, NULL, NULL, NULL);
    return rc == SQLITE_OK ? 0 : fail(store, rc);
}

/* SQLite would make the file with the umask's mode; its log and index files then take the mode of the file.  An existing file
 * is never opened here: closing it would drop the POSIX locks of other connections of this process. */
static int make_file(const char *path, struct mandor_err *err)
{
    int fd = RETRY_EINTR(open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (fd >= 0) {
        (void)close(fd);
        return 0;
    }
    if (errno == EEXIST)
        return 0;
    return err_set(err, -errno, FAULT_HOST, "make queue file '%s'", path);
}

static int on_commit(void *arg, sqlite3 *db, const char *name, int pages)
{
    struct store *store = arg;
    store->wal_pages = pages;
    store->written = true;
    return SQLITE_OK;
}

static int connect_db(struct store *store, struct mandor_err *err)
{
    struct stat st;
    if (stat(store->path, &st) == 0 && !S_ISREG(st.st_mode))
        return err_set(err, S_ISDIR(st.st_mode) ? -EISDIR : -EINVAL, FAULT_HOST,
                       "queue '%s' must be a regular file", store->path);
    int r = make_file(store->path, err);
    if (r < 0)
        return r;

    int rc =
        sqlite3_open_v2(store->path, &store->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL);
    if (rc != SQLITE_OK) {
        (void)fail(store, rc);
        return store_error(store, err);
    }
    (void)sqlite3_extended_result_codes(store->db, 1);
    (void)sqlite3_busy_timeout(store->db, STORE_BUSY_MS);
    /* the log stays when the last client goes: closing would otherwise cost four syncs a command */
    (void)sqlite3_db_config(store->db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
    (void)sqlite3_wal_hook(store->db, on_commit, store);
    if (exec(store,
             "PRAGMA synchronous=NORMAL; PRAGMA cache_size=-1024; PRAGMA temp_store=MEMORY;") < 0)
        return store_error(store, err);
    return 0;
}

/* Is this file ours, and of which version?  *ret_version 0: empty.  One statement, so that all three are of one moment. */
static int identify(struct store *store, int64_t *ret_version, struct mandor_err *err)
{
    static const char *const sql =
        "SELECT user_version, application_id, (SELECT count(*) FROM sqlite_schema) "
        "FROM pragma_user_version, pragma_application_id";
    sqlite3_stmt *stmt = NULL;
    int rc = sqlite3_prepare_v2(store->db, sql, -1, &stmt, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_step(stmt);
    if (rc != SQLITE_ROW) {
        (void)fail(store, rc);
        (void)sqlite3_finalize(stmt);
        return store_error(store, err);
    }
    int64_t version = col_i(stmt, 0), application = col_i(stmt, 1), tables = col_i(stmt, 2);
    (void)sqlite3_finalize(stmt);

    if (application != STORE_APPLICATION_ID && (application != 0 || version != 0 || tables != 0))
        return err_set(
            err, -EINVAL, FAULT_CALLER,
            "'%s' is a SQLite file of another program, expected a queue of mandor or no file",
            store->path);
    if (version > (int64_t)ARRAY_LEN(migrations))
        return err_set(err, -EINVAL, FAULT_CALLER,
                       "queue '%s' has format %" PRId64
                       ", this mandor knows formats up to %zu: use a newer mandor",
                       store->path, version, ARRAY_LEN(migrations));
    *ret_version = version;
    return 0;
}

static int migrate_in_tx(struct store *store, struct mandor_err *err)
{
    int64_t version;
    int r = identify(store, &version, err); /* again: another process may have been first */

    for (; r == 0 && version < (int64_t)ARRAY_LEN(migrations); version++) {
        char sql[96];
        (void)snprintf(sql, sizeof sql, "PRAGMA application_id=%d; PRAGMA user_version=%" PRId64,
                       STORE_APPLICATION_ID, version + 1);
        if (exec(store, migrations[version]) < 0 || exec(store, sql) < 0)
            r = store_error(store, err);
    }
    return r;
}

static int enter_wal(struct store *store, struct mandor_err *err)
{
    int r = turnstile_enter(&store->turnstile);
    if (r < 0)
        return turnstile_complain(&store->turnstile, store->path, r, err);
    r = exec(store, "PRAGMA journal_mode=WAL");
    turnstile_leave(&store->turnstile);
    return r < 0 ? store_error(store, err) : 0;
}

static int migrate(struct store *store, struct mandor_err *err)
{
    int64_t version;
    int r = identify(store, &version, err);
    if (r < 0 || version == (int64_t)ARRAY_LEN(migrations))
        return r;

    r = enter_wal(store, err);
    if (r == 0)
        r = store_begin(store, err);
    if (r < 0)
        return r;
    r = migrate_in_tx(store, err);
    if (r == 0)
        return store_commit(store, err);
    store_rollback(store);
    return r;
}

/* A worker reads the whole of a small file once: damage is better met now than in the middle of a settle. */
static int check_sound(struct store *store, struct mandor_err *err)
{
    struct stat st;
    if (stat(store->path, &st) < 0 || st.st_size > (off_t)8 << 20)
        return 0;

    sqlite3_stmt *stmt = NULL;
    int rc = sqlite3_prepare_v2(store->db, "PRAGMA quick_check(1)", -1, &stmt, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_step(stmt);
    if (rc == SQLITE_ROW && !str_eq(col_s(stmt, 0), "ok"))
        rc = SQLITE_CORRUPT;
    if (rc != SQLITE_ROW)
        store->rc = rc;
    (void)sqlite3_finalize(stmt);
    return rc == SQLITE_ROW ? 0 : store_error(store, err);
}

static int open_parts(struct store *store, bool worker, struct mandor_err *err)
{
    int r = connect_db(store, err);
    if (r == 0)
        r = turnstile_open(&store->turnstile, store->path, err);
    if (r == 0)
        r = migrate(store, err);
    if (r == 0 && worker)
        r = check_sound(store, err);
    if (r == 0)
        r = data_dir_make(store->path, &store->data_dir, err);
    if (r < 0)
        return r;

    /* journal_size_limit: the log shrinks again after a long reader has let it grow */
    if (exec(store, "PRAGMA journal_size_limit=8388608; PRAGMA wal_autocheckpoint=0;") < 0)
        return store_error(store, err);
    (void)sqlite3_wal_hook(store->db, on_commit, store); /* wal_autocheckpoint replaces the hook */
    return 0;
}

/* Without the statistics that nobody reads, SQLite's allocator takes no lock: a tenth of an insert's time. */
static void configure_sqlite(void)
{
    /* Too late when somebody else uses SQLite here: no harm. */
    (void)sqlite3_config(SQLITE_CONFIG_MEMSTATUS, 0);
}

int store_open(const char *path, bool worker, struct store **ret, struct mandor_err *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, configure_sqlite);

    SCOPED(store_free) struct store *store = calloc(1, sizeof *store);
    if (store != NULL) {
        store->turnstile = (struct turnstile)TURNSTILE_INIT;
        store->path = strdup(path);
    }
    if (store == NULL || store->path == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "open queue '%s'", path);

    int r = open_parts(store, worker, err);
    if (r < 0)
        return r;
    *ret = STEAL(store);
    return 0;
}

struct store *store_free(struct store *store)
{
    if (store == NULL)
        return NULL;
    store_rollback(store);
    for (int i = 0; i < STMTS; i++)
        (void)sqlite3_finalize(store->stmts[i]);
    (void)sqlite3_close(store->db);
    turnstile_done(&store->turnstile);
    free(store->doomed);
    free(store->keep_seen);
    free(store->data_dir);
    free(store->path);
    free(store);
    return NULL;
}
