/* deadline.h - a one-shot timer for what must not happen early: timeouts, grace, patience. */
#ifndef BASE_DEADLINE_H
#define BASE_DEADLINE_H

#include <uv.h>

#include "base/macro.h"

/* Call cb once, when in_ms (or more) have passed since this call; in_ms < 0 counts as 0.  On the loop's thread; timer is initialised,
 * and started anew if it runs.  A bare uv_timer_start() counts from the loop's clock, which stands still for a turn, says whole
 * milliseconds and may be a tick behind (libuv reads CLOCK_MONOTONIC_COARSE where that has a resolution of 1 ms): good enough for
 * looking again, too early for a deadline. */
void deadline_start(uv_timer_t *timer, uv_timer_cb cb, int64_t in_ms);

#endif
