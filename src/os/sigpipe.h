/* sigpipe.h - writing to a pipe that may have no reader, inside of a process whose signals are not ours (libmandor's host). */
#ifndef OS_SIGPIPE_H
#define OS_SIGPIPE_H

#include <sys/types.h>

#include "base/macro.h"

/* write(2) without SIGPIPE, whatever the host does with that signal.  Returns bytes, or -errno (-EPIPE: nobody reads any more). */
MUST_CHECK ssize_t sigpipe_write(int fd, const void *bytes, size_t len);

#endif
