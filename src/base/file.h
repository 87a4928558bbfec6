/* file.h - what is done with whole files and directories.  Any thread; all of it may wait. */
#ifndef BASE_FILE_H
#define BASE_FILE_H

#include "base/buf.h"
#include "base/err.h"

/* Append what the file holds to ret, at most max bytes.  regular_only: what is no regular file (-EINVAL) is not waited for.
 * Returns 0, -errno (-EISDIR for a directory), or -EFBIG when it is longer. */
MUST_CHECK int file_read(const char *path, size_t max, bool regular_only, struct buf *ret);

/* Write all of it, also where somebody else made fd non-blocking.  0 or -errno. */
MUST_CHECK int file_write_all(int fd, const void *bytes, size_t len);

/* mkdir -p of the directory that path lies in (up to its last '/'), with mode.  *made (NULL allowed; 0 at first): the length of the topmost
 * one that had to be made, by this call or one before.  0, or -errno with *err (NULL allowed). */
MUST_CHECK int file_make_parents(const char *path, mode_t mode, size_t *made,
                                 struct mandor_err *err);

/* Make the names in a directory durable.  0, also where the file system cannot do that or we may not read the directory; or -errno
 * with *err (NULL allowed). */
MUST_CHECK int file_sync_dir(const char *dir, struct mandor_err *err);

#endif
