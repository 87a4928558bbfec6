/* wal.h - makes commits durable and keeps the write-ahead log short, apart from the connection that writes.
 *
 * The writing connection runs with synchronous=NORMAL: a commit appends frames to the log and does not sync.  wal_sync() is one
 * fdatasync(2) of the log; what was committed before it was called is durable when it returns 0.  Why that is enough:
 *
 *   1. A commit's frames are written to the log before COMMIT returns, and frames are chained by checksums: recovery takes the
 *      longest valid prefix, so a synced frame is lost only with an earlier, unsynced one - and the sync covers the whole file.
 *   2. The log starts over only when all of it has been checkpointed, and a checkpoint (NORMAL, FULL) syncs the log before it
 *      copies, and the database before it says that it has.  So a frame that is no longer in the log is durable in the database.
 *   3. The log's directory entry is synced by SQLite when it makes the log.  While any connection is open nobody deletes it,
 *      so the descriptor opened here stays the right file.  POSIX locks are on the database and the -shm file only: opening and
 *      closing the log drops none.
 *
 * Every checkpoint is made with the turn (turnstile.h) in hand, so that no writer of ours can start the log over at that moment:
 * SQLite 3.7.0 to 3.51.2 may otherwise lose commits ("WAL-reset bug", sqlite.org/wal.html: a checkpoint that begins when the log
 * has just been copied whole, while a commit starts it over).  The log is synced before the turn is taken, which leaves copying
 * and one sync of the database for the time in which writers wait.
 *
 * A failed sync leaves pages that the kernel calls clean and the disk may not have.  The log is then *suspect*: nothing is called
 * durable until a complete checkpoint has carried everything over into the database and the log was emptied.
 *
 * Whoever owns a struct wal uses it on one thread: a worker's sync thread, or a client's broker thread.
 */
#ifndef BROKER_WAL_H
#define BROKER_WAL_H

#include <sqlite3.h>

#include "base/err.h"
#include "base/macro.h"
#include "broker/turnstile.h"

#define WAL_PAGES       1000 /* checkpoint when the log is longer */
/* Longer than this means that a reader stays in an old snapshot. */
#define WAL_WARN_BYTES  ((int64_t)64 << 20)
#define WAL_LIMIT_BYTES ((int64_t)8 << 20) /* journal_size_limit */

struct wal {
    char *db_path, *path;
    int fd; /* of the log; -1 until the first sync */
    bool suspect;
    /* For checkpoints, without a busy timeout: nobody waits with the turn in hand; NULL until the first. */
    sqlite3 *db;
    struct turnstile turnstile;
    int64_t warn_bytes; /* the next length that is worth a warning */
};

MUST_CHECK int wal_open(struct wal *wal, const char *db_path, struct mandor_err *err);
void wal_done(struct wal *wal);

/* Make everything committed so far durable.  Blocks.  0 or -errno with *err. */
MUST_CHECK int wal_sync(struct wal *wal, struct mandor_err *err);

/* Copy what can be copied from the log into the database.  Blocks; writers wait, readers do not.
 * Returns 1 when all of the log was copied, 0 when not (a reader of an old snapshot is in the way), -errno. */
int wal_checkpoint(struct wal *wal, struct mandor_err *err);
/* In quiet time: checkpoint, and cut the log file back when it is longer than WAL_LIMIT_BYTES. */
void wal_tidy(struct wal *wal);

extern int (*wal_test_fdatasync)(int fd); /* tests make it fail */

#endif
