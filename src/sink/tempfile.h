/* tempfile.h - a file that appears under its name only when it is whole (R111).  Blocking: pool threads only.
 *
 *    journal entry ─▶ .mandor.<id>.<attempt>.<stream>  beside the target ─▶ write … ─▶ fsync ─▶ rename ─▶ fsync of the directory, and of those above what had to be made
 *
 * The target must be absent or a regular file, when the temporary is made and again before the rename.  A temporary is locked
 * (flock) while it is written: one of the same name that nobody holds is the rest of a crashed attempt and is replaced.
 */
#ifndef SINK_TEMPFILE_H
#define SINK_TEMPFILE_H

#include <sys/uio.h>
#include <xxhash.h>

#include "base/err.h"
#include "base/macro.h"

struct tempfile {
    char *target, *temp, *journal; /* paths; journal NULL = none */
    int fd;                        /* -1 = not open */
    size_t made;     /* length of the topmost directory that had to be made for target; 0 = none */
    uint64_t device; /* st_dev, once open */
    bool synced;     /* tempfile_prepare() */
    bool own_dir;    /* the directory is ours too: abort removes it when it is empty */
    bool in_memory;  /* tmpfs: splice(2) is slower than read and write */
};

/* Work the names out; no I/O.  Text is copied.  Returns 0 or -ENOMEM.  Ended by tempfile_done(). */
MUST_CHECK int tempfile_init(struct tempfile *file, const char *target, const char *job_id,
                             int64_t attempt, const char *stream, const char *journal_dir);
/* Frees; the file must be committed or aborted, or was never open. */
void tempfile_done(struct tempfile *file);

/* Each returns 0 or -errno with *err. */
MUST_CHECK int tempfile_open(struct tempfile *file, struct mandor_err *err);
/* Append all of iov; hash (NULL = none) is updated with it. */
MUST_CHECK int tempfile_write(struct tempfile *file, const struct iovec *iov, int count,
                              XXH3_state_t *hash, struct mandor_err *err);
/* What of a commit can fail before the rename: the sync, above all. */
MUST_CHECK int tempfile_prepare(struct tempfile *file, struct mandor_err *err);
/* may: asked right before the rename; false with *err forbids it.  On failure the temporary is gone as after tempfile_abort(). */
MUST_CHECK int tempfile_commit(struct tempfile *file,
                               bool (*may)(void *arg, struct mandor_err *err), void *arg,
                               struct mandor_err *err);
void tempfile_abort(struct tempfile *file);

/* Text as one file name: '/', '%', control characters and a leading '.' become %XX; a long one is cut and gets a hash.
 * malloc'ed or NULL. */
char *tempfile_encode(const char *text);

#endif
