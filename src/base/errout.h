/* errout.h - standard error for threads that must not wait for whoever reads it (I6).
 *
 * A pipe that nobody reads, or a terminal under ^S, blocks write(2); O_NONBLOCK would be set for everybody who shares that
 * descriptor, and poll(2) promises nothing when others write there too.  So after errout_start() a thread of its own writes:
 *
 *     errout_put ──▶ [ at most ERROUT_BYTES ] ──▶ writer thread ──▶ write(2), whole lines of PIPE_BUF bytes at most
 *
 * What does not fit is left out whole and counted.  Before errout_start() (commands, the guard) errout_put() writes by itself.
 * Any thread. */
#ifndef BASE_ERROUT_H
#define BASE_ERROUT_H

#include "base/macro.h"

#define ERROUT_BYTES ((size_t)1 << 20)

/* After the process's last fork.  A second call does nothing.  0 or -errno: then errout_put() goes on writing by itself. */
int errout_start(void);
/* Wait, for ms at most, until all is written; then errout_put() writes by itself again.  If it is not, whatever comes later is left out. */
void errout_stop(int ms);
/* Wait likewise, and go on.  Takes no lock: also for a process that is about to abort. */
void errout_flush(int ms);

/* One piece of text, usually a line.  false: it was left out, and counted. */
bool errout_put(const char *bytes, size_t len);
bool errout_putf(const char *fmt, ...) PRINTF_LIKE(1, 2);

/* How many pieces were left out, or lost by a write that failed, since this was last asked.  Who asks tells of them. */
unsigned errout_take_lost(void);
void errout_add_lost(unsigned count);

#endif
