/* wal.c - contract and reasons in wal.h. */
#include "broker/wal.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#include "base/log.h"
#include "base/units.h"

int (*wal_test_fdatasync)(int fd) = fdatasync;

int wal_open(struct wal *wal, const char *db_path, struct mandor_err *err)
{
    *wal = (struct wal){ .fd = -1, .turnstile = TURNSTILE_INIT, .warn_bytes = WAL_WARN_BYTES };
    wal->db_path = strdup(db_path);
    if (asprintf(&wal->path, "%s-wal", db_path) < 0)
        wal->path = NULL;
    if (wal->db_path == NULL || wal->path == NULL) {
        wal_done(wal);
        return err_set(err, -ENOMEM, FAULT_HOST, "open queue '%s'", db_path);
    }
    int r = turnstile_open(&wal->turnstile, db_path, err);
    if (r < 0)
        wal_done(wal);
    return r;
}

void wal_done(struct wal *wal)
{
    if (wal->fd >= 0)
        (void)close(wal->fd);
    (void)sqlite3_close(wal->db);
    turnstile_done(&wal->turnstile);
    free(wal->db_path);
    free(wal->path);
    *wal = (struct wal){ .fd = -1, .turnstile = TURNSTILE_INIT };
}

static int connect_db(struct wal *wal, struct mandor_err *err)
{
    if (wal->db != NULL)
        return 0;

    sqlite3 *db = NULL;
    int rc = sqlite3_open_v2(wal->db_path, &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL);
    if (rc == SQLITE_OK)
        (void)sqlite3_db_config(db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
    if (rc == SQLITE_OK) /* a checkpoint of a connection that has read nothing yet does nothing */
        rc = sqlite3_exec(
            db,
            "PRAGMA cache_size=-64; PRAGMA journal_size_limit=8388608; SELECT 1 FROM jobs LIMIT 1;",
            NULL, NULL, NULL);
    if (rc != SQLITE_OK) {
        int r = err_set(err, -EIO, FAULT_HOST, "queue file '%s': open for checkpoints: %s",
                        wal->db_path, sqlite3_errstr(rc));
        (void)sqlite3_close(db);
        return r;
    }
    wal->db = db;
    return 0;
}

static int64_t log_bytes(const struct wal *wal)
{
    struct stat st;
    return stat(wal->path, &st) == 0 ? st.st_size : 0;
}

/* One warning each time the log has doubled (R81). */
static void warn_length(struct wal *wal, bool complete)
{
    char text[UNITS_TEXT_SIZE];
    int64_t bytes = log_bytes(wal);

    if (complete || bytes < WAL_WARN_BYTES)
        wal->warn_bytes = WAL_WARN_BYTES;
    else if (bytes >= wal->warn_bytes) {
        log_warn("'%s' has grown to %s because some program keeps an old read transaction open; it "
                 "shrinks when that ends",
                 wal->path, units_human_size(bytes, text));
        wal->warn_bytes = bytes * 2;
    }
}

/* One sync.  The kernel tells each descriptor of lost pages once: whoever meets a failure must remember it. */
static int sync_log(struct wal *wal)
{
    if (RETRY_EINTR(wal_test_fdatasync(wal->fd)) == 0)
        return 0;
    int r = -errno;
    log_error("sync of '%s' failed: %s", wal->path, strerror(-r));
    wal->suspect = true;
    return r;
}

/* Returns SQLite's result. */
static int checkpoint_in_turn(struct wal *wal, int mode, int *ret_log, int *ret_copied)
{
    if (!wal->suspect && wal->fd >= 0) /* what is synced here need not be synced in the turn */
        (void)sync_log(wal);           /* a failure makes the log suspect; copying still helps */
    if (turnstile_enter(&wal->turnstile) < 0)
        return SQLITE_BUSY;
    int rc = sqlite3_wal_checkpoint_v2(wal->db, NULL, mode, ret_log, ret_copied);
    turnstile_leave(&wal->turnstile);
    return rc;
}

static int checkpoint(struct wal *wal, int mode, struct mandor_err *err)
{
    int log = 0, copied = 0;
    int r = connect_db(wal, err);
    if (r < 0)
        return r;

    int rc = checkpoint_in_turn(wal, mode, &log, &copied);
    /* Another program is at it, or a reader in the way. */
    if (rc == SQLITE_BUSY || rc == SQLITE_LOCKED)
        return 0;
    if (rc != SQLITE_OK)
        return err_set(err, (rc & 0xff) == SQLITE_FULL ? -ENOSPC : -EIO, FAULT_HOST,
                       "checkpoint of queue file '%s' (%s)", wal->db_path, sqlite3_errstr(rc));
    warn_length(wal, log == copied);
    return log >= 0 && log == copied;
}

int wal_checkpoint(struct wal *wal, struct mandor_err *err)
{
    return checkpoint(wal, SQLITE_CHECKPOINT_PASSIVE, err);
}

void wal_tidy(struct wal *wal)
{
    if (wal_checkpoint(wal, NULL) == 1 && log_bytes(wal) > WAL_LIMIT_BYTES)
        (void)checkpoint(wal, SQLITE_CHECKPOINT_TRUNCATE, NULL);
}

/* After a failed sync.  A complete checkpoint carries everything over, and emptying the log sees to it that no later frame stands
 * behind one that the disk does not have: recovery would stop there. */
static int redeem(struct wal *wal, struct mandor_err *err)
{
    int r = checkpoint(wal, SQLITE_CHECKPOINT_TRUNCATE, err);
    if (r == 1) {
        log_warn("everything in '%s' was carried over into the queue file after a failed sync",
                 wal->path);
        wal->suspect = false;
        return 0;
    }
    if (r == 0)
        r = err_set(err, -EIO, FAULT_HOST,
                    "queue log '%s' could not be synced to disk; not yet repaired", wal->path);
    return r;
}

int wal_sync(struct wal *wal, struct mandor_err *err)
{
    if (wal->fd < 0)
        wal->fd = RETRY_EINTR(open(wal->path, O_RDONLY | O_CLOEXEC));
    if (wal->fd < 0)
        return err_set(err, -errno, FAULT_HOST, "open '%s'", wal->path);
    if (wal->suspect)
        return redeem(wal, err);

    int r = sync_log(wal);
    if (r == 0 || redeem(wal, err) == 0)
        return 0;
    return err_set(err, r, FAULT_HOST, "sync queue log '%s': check the disk", wal->path);
}
