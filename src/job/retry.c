/* retry.c - from an outcome to the next state and when. */
#include "job/verdict.h"

#define PUT_BACK_FIRST_MS INT64_C(1000)
#define PUT_BACK_MAX_MS   INT64_C(60000)

/* first doubled `times` times, at most max. */
static int64_t doubled(int64_t first, int64_t times, int64_t max)
{
    int64_t delay = MIN(first, max);

    for (; times > 0 && delay > 0 && delay < max; times--)
        delay = delay > max / 2 ? max : delay * 2;
    return delay;
}

/* The delay before the attempt that follows `used` charged ones (this one not counted).  Jitter would be lost at the
 * cap if the result were cut there, and a burst of failures would come back as a burst: the cap is lowered so that the
 * longest jittered delay is the maximum. */
static int64_t backoff(const struct spec *spec, int64_t used, double random01)
{
    double jitter = spec->backoff_jitter;
    int64_t delay = spec->backoff_delay_ms;

    if (spec->backoff == BACKOFF_EXPONENTIAL)
        delay = MIN(
            doubled(delay, used, spec->backoff_max_ms),
            MAX((int64_t)((double)spec->backoff_max_ms / (1 + jitter)), spec->backoff_delay_ms));
    return MAX((int64_t)((double)delay * (1 + jitter * (2 * random01 - 1)) + 0.5), (int64_t)0);
}

static struct retry_plan after(int64_t delay_ms, bool charged)
{
    return (struct retry_plan){ .state = delay_ms > 0 ? JOB_DELAYED : JOB_WAITING,
                                .charged = charged,
                                .delay_ms = delay_ms };
}

struct retry_plan retry_plan(enum outcome outcome, const struct spec *spec, int64_t attempts_used,
                             int64_t put_backs, double random01)
{
    switch (outcome) {
    case OUTCOME_COMPLETED:
        return (struct retry_plan){ .state = JOB_COMPLETED, .charged = true };
    case OUTCOME_FAILED:
        return (struct retry_plan){ .state = JOB_FAILED, .charged = true };
    case OUTCOME_CANCELLED:
        return (struct retry_plan){ .state = JOB_CANCELLED };
    case OUTCOME_PUT_BACK:
        return after(doubled(PUT_BACK_FIRST_MS, put_backs, PUT_BACK_MAX_MS), false);
    case OUTCOME_RETRY:
        if (attempts_used + 1 >= spec->attempts)
            return (struct retry_plan){ .state = JOB_FAILED, .charged = true };
        return after(backoff(spec, attempts_used, random01), true);
    case OUTCOME_NOTHING:
        break;
    }
    BUG("a lost lease has no plan: nothing may be written");
}
