/* renew.c - leases are kept while jobs run, and acted upon when they are lost (I7).
 *
 * A third of the lease after the last success everything that is held is renewed in one request; its answer also tells of
 * cancels.  A worker that cannot renew ends its trees before the lease runs out, whoever may hold the broker up. */
#include "base/clock.h"
#include "base/log.h"
#include "worker/attempt.h"
#include "worker/scheduler.h"

#define MARGIN_MS 5000 /* trees are killed this long before the lease expires */

struct renewal {
    struct broker_req req;
    struct source *source;
    int64_t asked_boot_ms;
    struct lease_ref *refs;
    unsigned char *flags;
    char **ids;
};

static void free_renewal(struct renewal *renewal)
{
    for (size_t i = 0; i < renewal->req.renew.count; i++)
        free(renewal->ids[i]);
    free(renewal->ids);
    free(renewal->refs);
    free(renewal->flags);
    free(renewal);
}

static void act(struct source *source, const struct lease_ref *ref, unsigned flags,
                int64_t until_boot_ms)
{
    struct attempt *attempt = hash_gets(source->by_id, ref->id);

    if (attempt == NULL || attempt->lease.attempt != ref->attempt)
        return; /* it has moved on since the question was asked */
    if (flags & RENEW_LOST) {
        attempt_stop(attempt, CAUSE_LOST_LEASE, 0, "lease lost");
        return;
    }
    attempt_renewed(attempt, until_boot_ms);
    if (flags & RENEW_CANCEL)
        attempt_stop(attempt, CAUSE_CANCELLED, -1, "cancelled");
}

static void on_renewed(struct broker_req *req)
{
    struct renewal *renewal = req->data;
    struct source *source = renewal->source;

    bool again = source->renew_again;
    source->renewing = source->renew_again = false;
    if (req->status < 0) {
        log_warn("leases were not renewed: %s", req->err.msg);
    } else {
        source->renewed_boot_ms = renewal->asked_boot_ms;
        for (size_t i = 0; i < req->renew.count; i++)
            act(source, &renewal->refs[i], renewal->flags[i],
                renewal->asked_boot_ms + req->renew.left_ms);
    }
    free_renewal(renewal);
    if (again) /* asked for meanwhile, perhaps about what this one did not name */
        renew_ask(source);
    worker_check_done(source->worker);
}

/* While START is under way nobody knows which token is in force; it extends the lease itself. */
static bool renewable(const struct source *source, const struct attempt *attempt)
{
    return attempt->source == source &&
           !(attempt->state == ATTEMPT_STARTING && attempt->req_busy) &&
           attempt->state != ATTEMPT_SETTLING;
}

/* Nothing is to be renewed.  What is being started has its lease from when that was asked, however late the answer comes. */
static int64_t nothing_older(const struct source *source)
{
    int64_t at = clock_boot_ms();

    LIST_FOREACH(attempt, &source->worker->attempts, struct attempt, node)
        if (attempt->source == source && attempt->state == ATTEMPT_STARTING && attempt->req_busy)
            at = MIN(at, attempt->asked_boot_ms);
    return at;
}

void renew_ask(struct source *source)
{
    struct worker *worker = source->worker;
    size_t count = 0;

    source->renew_again = source->renewing;
    if (source->renewing || worker->closing)
        return;
    LIST_FOREACH(attempt, &worker->attempts, struct attempt, node)
        count += renewable(source, attempt);
    if (count == 0) {
        source->renewed_boot_ms = nothing_older(source);
        return;
    }

    struct renewal *renewal = calloc(1, sizeof *renewal);
    if (renewal == NULL)
        return;
    renewal->source = source;
    renewal->refs = calloc(count, sizeof *renewal->refs);
    renewal->flags = calloc(count, 1);
    renewal->ids = calloc(count, sizeof *renewal->ids);
    renewal->req = (struct broker_req){ .op = BROKER_RENEW, .done = on_renewed, .data = renewal };
    if (renewal->refs == NULL || renewal->flags == NULL || renewal->ids == NULL) {
        free_renewal(renewal);
        return;
    }
    LIST_FOREACH(attempt, &worker->attempts, struct attempt, node) {
        size_t n = renewal->req.renew.count;
        if (!renewable(source, attempt) || (renewal->ids[n] = strdup(attempt->lease.id)) == NULL)
            continue;
        renewal->refs[n] =
            (struct lease_ref){ .id = renewal->ids[n], .attempt = attempt->lease.attempt };
        renewal->req.renew.count++;
    }
    renewal->req.renew.refs = renewal->refs;
    renewal->req.renew.flags = renewal->flags;
    renewal->asked_boot_ms = clock_boot_ms();
    source->renewing = true;
    broker_submit(source->broker, &renewal->req);
}

void renew_check_expiry(struct source *source)
{
    struct worker *worker = source->worker;
    int64_t lease_ms = worker->config->lease_ms;
    int64_t margin_ms = MIN((int64_t)MARGIN_MS, lease_ms / 3);
    int64_t age_ms = clock_boot_ms() - source->renewed_boot_ms;

    LIST_FOREACH(attempt, &worker->attempts, struct attempt, node)
        if (attempt->source == source)
            attempt_check_expiry(attempt);
    if (age_ms < lease_ms - margin_ms)
        return;
    scheduler_give_back(worker->scheduler, source, 0); /* what has not started needs no end */
    /* A commit has a deadline of its own. */
    LIST_FOREACH(attempt, &worker->attempts, struct attempt, node)
        if (attempt->source == source && attempt->commit_until_boot_ms == 0)
            attempt_stop(attempt, CAUSE_LOST_LEASE, 0, "the lease could not be renewed in time");
}
