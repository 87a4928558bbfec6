/* memfile.h - files in memory (memfd_create(2)): input and output of a helper process, which neither side can wait for.  Any thread. */
#ifndef OS_MEMFILE_H
#define OS_MEMFILE_H

#include "base/buf.h"
#include "base/macro.h"

/* A file that holds these bytes, close-on-exec, read from its start.  Its descriptor or -errno. */
MUST_CHECK int memfile_make(const char *name, const void *bytes, size_t len);
/* Append all that it holds; at most `most` bytes, else -EFBIG.  0 or -errno. */
MUST_CHECK int memfile_read(int fd, size_t most, struct buf *buf);

#endif
