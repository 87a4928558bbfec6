/* deadline.c - contract in deadline.h. */
#include "base/deadline.h"

#include "base/clock.h"

void deadline_start(uv_timer_t *timer, uv_timer_cb cb, int64_t in_ms)
{
    /* The loop's clock is CLOCK_MONOTONIC in milliseconds and never ahead of it: when it says due_ms, that has come. */
    int64_t due_ms = clock_mono_ms() + 1 + MAX(in_ms, (int64_t)0);
    int64_t loop_ms = (int64_t)uv_now(timer->loop);

    (void)uv_timer_start(timer, cb, (uint64_t)MAX(due_ms - loop_ms, (int64_t)0), 0);
}
