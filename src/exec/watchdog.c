/* watchdog.c - contract in watchdog.h. */
#include "exec/watchdog.h"

#include <stdio.h>

#include "base/clock.h"
#include "base/deadline.h"
#include "base/metrics.h"
#include "base/units.h"

static const struct spec *spec_of(const struct watchdog *watchdog)
{
    return execution_request(watchdog->streams->execution)->spec;
}

static void on_deadline(uv_timer_t *timer)
{
    struct watchdog *watchdog = timer->data;
    char why[80], limit[UNITS_TEXT_SIZE];

    metric_observe(METRIC_deadline_late_us, (clock_mono_ns() - watchdog->due_at_ns) / 1000);
    (void)snprintf(why, sizeof why, "timeout of %s",
                   units_print_duration(spec_of(watchdog)->timeout_ms, limit));
    watchdog->on_expired(watchdog->streams->execution, CAUSE_TIMEOUT, why);
}

/* One timer, moved on when it fires early: activity only notes the time. */
static void on_idle(uv_timer_t *timer)
{
    struct watchdog *watchdog = timer->data;
    int64_t limit_ms = spec_of(watchdog)->idle_timeout_ms;
    int64_t silent_ms = clock_mono_ms() - watchdog->streams->active_at_ms;
    char why[80], limit[UNITS_TEXT_SIZE];

    /* Silence under backpressure is ours, not the job's. */
    if (job_streams_paused(watchdog->streams))
        silent_ms = 0;
    if (silent_ms < limit_ms) {
        deadline_start(timer, on_idle, limit_ms - silent_ms);
        return;
    }
    (void)snprintf(why, sizeof why, "no output for %s", units_print_duration(limit_ms, limit));
    watchdog->on_expired(watchdog->streams->execution, CAUSE_IDLE_TIMEOUT, why);
}

void watchdog_init(struct watchdog *watchdog, struct job_streams *streams,
                   void (*on_expired)(struct execution *execution, enum cause cause,
                                      const char *why))
{
    uv_loop_t *loop = execution_request(streams->execution)->env->loop;

    *watchdog = (struct watchdog){ .streams = streams, .on_expired = on_expired };
    (void)uv_timer_init(loop, &watchdog->deadline);
    (void)uv_timer_init(loop, &watchdog->idle);
    watchdog->deadline.data = watchdog->idle.data = watchdog;
}

void watchdog_start(struct watchdog *watchdog)
{
    const struct spec *spec = spec_of(watchdog);

    watchdog->streams->active_at_ms = clock_mono_ms();
    watchdog->due_at_ns = clock_mono_ns() + spec->timeout_ms * 1000000;
    if (spec->timeout_ms > 0)
        deadline_start(&watchdog->deadline, on_deadline, spec->timeout_ms);
    if (spec->idle_timeout_ms > 0)
        deadline_start(&watchdog->idle, on_idle, spec->idle_timeout_ms);
}

void watchdog_stop(struct watchdog *watchdog)
{
    (void)uv_timer_stop(&watchdog->deadline);
    (void)uv_timer_stop(&watchdog->idle);
}

static void on_timer_closed(uv_handle_t *handle)
{
    struct watchdog *watchdog = handle->data;
    watchdog->on_closed(watchdog->closed_arg);
}

void watchdog_close(struct watchdog *watchdog, void (*on_closed)(void *arg), void *arg)
{
    watchdog->on_closed = on_closed;
    watchdog->closed_arg = arg;
    uv_close((uv_handle_t *)&watchdog->deadline, on_timer_closed);
    uv_close((uv_handle_t *)&watchdog->idle, on_timer_closed);
}
