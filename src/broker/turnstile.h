/* turnstile.h - a fair queue before SQLite's write lock, made of two flock(2) files.
 *
 * SQLite's busy handler polls; beside a back-to-back writer it starves for seconds.  flock() waiters sleep in the kernel in
 * order of arrival, and two files keep the one who just wrote from overtaking the one who waits:
 *
 *     lock <db>.next ─▶ lock <db>.turn ─▶ unlock <db>.next ─▶ one transaction ─▶ unlock <db>.turn
 *
 * A process that dies in the middle lets go of both.  One thread a turnstile.
 */
#ifndef BROKER_TURNSTILE_H
#define BROKER_TURNSTILE_H

#include "base/err.h"
#include "base/macro.h"

struct turnstile {
    int next_fd, turn_fd; /* -1 = not open */
};
#define TURNSTILE_INIT               \
    {                                \
        .next_fd = -1, .turn_fd = -1 \
    }

/* Open (and make, mode 0600) the two files beside db_path. */
MUST_CHECK int turnstile_open(struct turnstile *turnstile, const char *db_path,
                              struct mandor_err *err);
void turnstile_done(struct turnstile *turnstile);

/* Wait for the turn.  Blocks.  0, -ETIMEDOUT (somebody has held it for 10 s: stopped, or hung on its disk) or flock's -errno. */
MUST_CHECK int turnstile_enter(struct turnstile *turnstile);
/* Fill err for a turn that could not be had, naming who holds it.  Returns -errno. */
int turnstile_complain(const struct turnstile *turnstile, const char *db_path, int error,
                       struct mandor_err *err);
extern int64_t turnstile_test_patience_ms;
void turnstile_leave(struct turnstile *turnstile);

#endif
