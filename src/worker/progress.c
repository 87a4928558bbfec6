/* progress.c - contract in progress.h. */
#include "worker/progress.h"

#include <stdarg.h>
#include <stdio.h>
#include <sys/ioctl.h>

#include "base/buf.h"
#include "base/errout.h"
#include "base/metrics.h"
#include "base/units.h"
#include "worker/attempt.h"
#include "worker/scheduler.h"

#define REDRAW_MS 200

struct progress {
    struct worker *worker;
    uv_timer_t timer;
    bool colour, drawn;
};

static const struct {
    const char *sign, *colour;
} looks[JOB_STATES] = {
    [JOB_WAITING] = { "↻", "33" },   [JOB_DELAYED] = { "↻", "33" }, [JOB_ACTIVE] = { "…", "0" },
    [JOB_COMPLETED] = { "✓", "32" }, [JOB_FAILED] = { "✗", "31" },  [JOB_CANCELLED] = { "⊘", "35" },
};

/* What takes the moving line away, once. */
static const char *cleared(struct progress *progress)
{
    const char *text = progress->drawn ? "\r\033[K" : "";

    progress->drawn = false;
    return text;
}

static int columns(void)
{
    struct winsize size;
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 20 ? size.ws_col : 80;
}

/* How far a running job says it is: {"progress": 42} or any short JSON value. */
static void add_progress(struct buf *line, const struct attempt *attempt)
{
    const json_t *value =
        attempt->execution != NULL ? execution_progress(attempt->execution) : NULL;

    if (json_is_number(value))
        (void)!buf_addf(line, " %.0f%%", json_number_value(value));
}

static void draw(uv_timer_t *timer)
{
    struct progress *progress = timer->data;
    struct worker *worker = progress->worker;
    char command[40];
    SCOPED_BUF line = { 0 };

    (void)!buf_addf(&line, "%zu running, %" PRId64 " completed, %" PRId64 " failed",
                    scheduler_active(worker->scheduler), metric_get(METRIC_jobs_completed),
                    metric_get(METRIC_jobs_failed));
    LIST_FOREACH(attempt, &worker->attempts, struct attempt, node) {
        if (attempt->state != ATTEMPT_RUNNING || line.len > (size_t)columns())
            continue;
        attempt_command(attempt, command, sizeof command);
        (void)!buf_addf(&line, " │ %s %s", attempt->lease.id, command);
        add_progress(&line, attempt);
    }
    const char *clear = cleared(progress);
    progress->drawn =
        errout_putf("%s%.*s", clear, columns() - 1, line.data != NULL ? (char *)line.data : "");
}

struct progress *progress_new(struct worker *worker)
{
    if (!worker->setup.progress)
        return NULL;

    struct progress *progress = calloc(1, sizeof *progress);
    if (progress == NULL)
        return NULL;
    progress->worker = worker;
    progress->colour = getenv("NO_COLOR") == NULL;
    (void)uv_timer_init(&worker->loop, &progress->timer);
    progress->timer.data = progress;
    (void)uv_timer_start(&progress->timer, draw, REDRAW_MS, REDRAW_MS);
    uv_unref((uv_handle_t *)&progress->timer);
    return progress;
}

void progress_settled(struct progress *progress, const struct attempt *attempt)
{
    char command[64], took[UNITS_TEXT_SIZE], text[VERDICT_TEXT_SIZE];
    SCOPED_BUF line = { 0 };

    if (progress == NULL)
        return;
    attempt_command(attempt, command, sizeof command);
    const char *sign = looks[attempt->plan.state].sign;
    (void)!buf_addf(&line, "%s", cleared(progress));
    if (progress->colour)
        (void)!buf_addf(&line, "\033[%s;1m%s\033[0m ", looks[attempt->plan.state].colour, sign);
    else
        (void)!buf_addf(&line, "%s ", sign);
    (void)!buf_addf(&line, "%-5s %-9s %8s  %s", attempt->lease.id,
                    job_state_name(attempt->plan.state),
                    units_human_duration(attempt->verdict.wall_ms, took), command);
    if (attempt->plan.state != JOB_COMPLETED)
        (void)!buf_addf(&line, "  (%.120s)", verdict_text(&attempt->verdict, text));
    (void)!buf_addf(&line, "\n");
    (void)errout_put(line.data, line.len);
}

void progress_say(struct progress *progress, const char *fmt, ...)
{
    va_list args;
    SCOPED_FREE char *text = NULL;

    if (progress == NULL)
        return;
    va_start(args, fmt);
    int len = vasprintf(&text, fmt, args);
    va_end(args);
    if (len < 0)
        text = NULL;
    else
        (void)errout_putf("%s%s\n", cleared(progress), text);
}

void progress_close(struct progress *progress)
{
    if (progress == NULL)
        return;
    (void)errout_putf("%s", cleared(progress));
    uv_close((uv_handle_t *)&progress->timer, NULL);
}

struct progress *progress_free(struct progress *progress)
{
    free(progress);
    return NULL;
}
