/* prints.h - what a warm worker writes to descriptor 1 or 2, as lines for the log.  The reader always reads, so that a flood
 * never blocks the worker; lines are cut, and whoever gets them decides how many are worth printing.  Loop thread only. */
#ifndef POOL_PRINTS_H
#define POOL_PRINTS_H

#include <uv.h>

#include "base/macro.h"

#define PRINTS_LINE ((size_t)512) /* bytes of a line that are kept */

struct prints;

/* adopt_fd: the read end of a pipe, consumed whatever the result; made O_NONBLOCK.
 * on_line: text without its newline, at most PRINTS_LINE - 1 bytes, control characters replaced. */
MUST_CHECK int prints_new(uv_loop_t *loop, int adopt_fd,
                          void (*on_line)(void *arg, const char *line), void *arg,
                          struct prints **ret);
/* Nobody is left to write: take what the pipe holds. */
void prints_finish(struct prints *prints);
/* on_closed may come from inside. */
void prints_close(struct prints *prints, void (*on_closed)(void *arg), void *arg);

#endif
