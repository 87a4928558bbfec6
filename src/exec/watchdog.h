/* watchdog.h - the two clocks of a running attempt: timeout, and idle_timeout (no output for so long).  Used by every executor.
 * Embedded in its owner.  Loop thread only. */
#ifndef EXEC_WATCHDOG_H
#define EXEC_WATCHDOG_H

#include "exec/job_streams.h"

struct watchdog {
    uv_timer_t deadline, idle;
    int64_t due_at_ns; /* monotonic: when the timeout is */
    struct job_streams *streams;
    void (*on_expired)(struct execution *execution, enum cause cause, const char *why);
    void (*on_closed)(void *arg);
    void *closed_arg;
};

/* on_expired: timeout, or idle_timeout with its reason; each at most once a start. */
void watchdog_init(struct watchdog *watchdog, struct job_streams *streams,
                   void (*on_expired)(struct execution *execution, enum cause cause,
                                      const char *why));
/* The job runs from now on (again). */
void watchdog_start(struct watchdog *watchdog);
void watchdog_stop(struct watchdog *watchdog);
/* on_closed runs twice, once for each timer. */
void watchdog_close(struct watchdog *watchdog, void (*on_closed)(void *arg), void *arg);

#endif
