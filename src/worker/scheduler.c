/* scheduler.c - contract in scheduler.h. */
#include "worker/scheduler.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/metrics.h"
#include "worker/attempt.h"

#define SCHEDULER_MAGIC 0x73636864u
#define LEASE_MAX       256 /* jobs in one request */
#define SETTLING_MAX    256 /* unsettled attempts beyond the slots, before leasing pauses */
#define RATE_WINDOW_MS  1000
#define QUEUES_KEPT     256 /* more are kept only while they hold something */

struct squeue {
    char *name;
    struct source *source; /* the broker that has it */
    size_t limit;          /* slots of this queue; SIZE_MAX = none of its own */
    double weight, pass;
    size_t active;      /* attempts that hold a slot */
    struct list leased; /* attempts that wait for one, oldest first */
    size_t leased_count;
    bool named; /* by configuration or --queue: asked for by name */
    bool ever_named;
};

/* What is asked of one broker. */
struct feed {
    struct scheduler *scheduler;
    struct source *source;
    struct broker_req req;
    bool asking, ask_again, full_quota;
    bool wanted, shares; /* a request is due at the end of this turn, and for which part */
    bool
        blocked; /* it found all room promised to other brokers: it looks again when one of them has answered */
    bool failing; /* the last request did */
    bool dry; /* the broker had less than we wanted: only a wake-up makes it worth asking again */
    bool drained;
    size_t coming, coming_started; /* asked for, so that no other feed counts on the same slots */
    struct lease leases[LEASE_MAX];
    struct lease_queue *asked;
};

struct scheduler {
    uint32_t magic;
    struct worker *worker;
    size_t concurrency;
    struct squeue **queues;
    size_t queue_count;
    bool all; /* serve whatever queues the broker has */
    size_t active, leased;

    struct feed *feeds; /* one a broker */
    size_t feed_count;
    uv_idle_t
        turn; /* active: requests are due at the end of this turn, when all has freed its slots that will */
    uv_timer_t due;

    int64_t window_at_ms; /* completions of the last and this window: how far to lease ahead */
    size_t window_count, window_last;
};

/* ---- queues ---- */

/* Jobs that wait for a worker of a full pool hold slots: of a queue that is bound to one, as many may wait as can run. */
static size_t pool_limit(const struct config *config, const struct config_queue *queue)
{
    const char *name = json_string_value(json_object_get(queue->defaults, "pool"));

    for (size_t i = 0; name != NULL && i < config->pool_count; i++) {
        const struct pool_options *pool = &config->pools[i];
        if (str_eq(pool->name, name))
            return 2 * (size_t)MAX(pool->size_max * pool->concurrency, (int64_t)1);
    }
    return SIZE_MAX;
}

static void configure_queue(struct scheduler *scheduler, struct squeue *queue)
{
    const struct config *all = scheduler->worker->config;
    const struct config_queue *config = config_queue(all, queue->name);

    queue->limit = config->concurrency > 0 ? (size_t)config->concurrency : pool_limit(all, config);
    queue->weight = (double)MAX(config->weight, (int64_t)1);
}

static struct squeue *find(struct scheduler *scheduler, const char *name)
{
    for (size_t i = 0; i < scheduler->queue_count; i++)
        if (str_eq(scheduler->queues[i]->name, name))
            return scheduler->queues[i];
    return NULL;
}

/* Join at the pace of the others: idleness saves up no credit. */
static double lowest_pass(const struct scheduler *scheduler)
{
    double lowest = 0;
    bool any = false;

    for (size_t i = 0; i < scheduler->queue_count; i++) {
        const struct squeue *queue = scheduler->queues[i];
        if (queue->active + queue->leased_count > 0 && (!any || queue->pass < lowest)) {
            lowest = queue->pass;
            any = true;
        }
    }
    return lowest;
}

/* A worker of all queues meets ever new names.  Those that hold nothing are met again if they come back; what was named is part of
 * requests, which borrow the name. */
static void forget_idle(struct scheduler *scheduler)
{
    size_t kept = 0;

    for (size_t i = 0; i < scheduler->queue_count; i++) {
        struct squeue *queue = scheduler->queues[i];
        if (queue->ever_named || queue->active > 0 || queue->leased_count > 0) {
            scheduler->queues[kept++] = queue;
            continue;
        }
        free(queue->name);
        free(queue);
    }
    scheduler->queue_count = kept;
}

static struct squeue *obtain(struct scheduler *scheduler, struct source *source, const char *name)
{
    struct squeue *queue = find(scheduler, name);
    if (queue != NULL)
        return queue;
    if (scheduler->queue_count >= QUEUES_KEPT)
        forget_idle(scheduler);

    struct squeue **grown =
        realloc(scheduler->queues, (scheduler->queue_count + 1) * sizeof *grown);
    if (grown == NULL)
        return NULL;
    scheduler->queues = grown;
    queue = calloc(1, sizeof *queue);
    if (queue == NULL || (queue->name = strdup(name)) == NULL) {
        free(queue);
        return NULL;
    }
    list_init(&queue->leased);
    queue->source = source;
    queue->pass = lowest_pass(scheduler);
    configure_queue(scheduler, queue);
    scheduler->queues[scheduler->queue_count++] = queue;
    return queue;
}

static void name_queues(struct scheduler *scheduler)
{
    const struct worker_setup *setup = &scheduler->worker->setup;
    const struct config *config = scheduler->worker->config;
    size_t count = setup->queue_count > 0 ? setup->queue_count : config->queue_count;

    scheduler->all = count == 0;
    for (size_t i = 0; i < scheduler->queue_count; i++)
        scheduler->queues[i]->named = false;
    for (size_t i = 0; i < count; i++) {
        const char *name = setup->queue_count > 0 ? setup->queues[i] : config->queues[i].name;
        struct source *source = source_of_queue(scheduler->worker, name);
        struct squeue *queue = source != NULL ? obtain(scheduler, source, name) : NULL;
        if (source == NULL)
            log_error("queue '%s' is not served: its broker is new, and that needs a restart",
                      name);
        if (queue == NULL)
            continue;
        queue->named = queue->ever_named = true;
        queue->source = source;
    }
}

static struct feed *feed_of(struct scheduler *scheduler, const struct source *source)
{
    for (size_t i = 0; i < scheduler->feed_count; i++)
        if (scheduler->feeds[i].source == source)
            return &scheduler->feeds[i];
    BUG("a queue without a feed");
}

/* ---- how much to lease ---- */

static void roll_window(struct scheduler *scheduler)
{
    int64_t now = clock_mono_ms();

    if (now - scheduler->window_at_ms < RATE_WINDOW_MS)
        return;
    scheduler->window_last =
        now - scheduler->window_at_ms < 2 * RATE_WINDOW_MS ? scheduler->window_count : 0;
    scheduler->window_count = 0;
    scheduler->window_at_ms = now;
}

static size_t ahead(struct scheduler *scheduler, const struct source *source)
{
    if (broker_starts_leases(source->broker))
        return 0;
    roll_window(scheduler);
    size_t rate = MAX(scheduler->window_last, scheduler->window_count);
    return MIN(scheduler->concurrency, rate);
}

/* What the other brokers were asked for may come. */
static size_t coming(const struct scheduler *scheduler, bool started)
{
    size_t sum = 0;

    for (size_t i = 0; i < scheduler->feed_count; i++)
        sum += started ? scheduler->feeds[i].coming_started : scheduler->feeds[i].coming;
    return sum;
}

static size_t room(struct scheduler *scheduler, const struct feed *feed)
{
    const struct worker *worker = scheduler->worker;
    size_t target = scheduler->concurrency + ahead(scheduler, feed->source);
    size_t held = scheduler->active + scheduler->leased + coming(scheduler, false);

    if (worker->stopping || worker->settling >= SETTLING_MAX + scheduler->concurrency ||
        held >= target)
        return 0;
    return MIN(target - held, (size_t)LEASE_MAX);
}

static size_t queue_room(struct scheduler *scheduler, const struct squeue *queue)
{
    size_t held = queue->active + queue->leased_count;
    size_t bound = queue->limit;

    if (bound < SIZE_MAX)
        bound += MIN(bound, ahead(scheduler, queue->source));
    return held >= bound ? 0 : bound - held;
}

static int by_pass(const void *a, const void *b)
{
    const struct squeue *const *x = a, *const *y = b;
    return ((*x)->pass > (*y)->pass) - ((*x)->pass < (*y)->pass);
}

/* 0 = the queue has no say. */
static int64_t default_attempts(const struct scheduler *scheduler, const char *queue)
{
    const json_t *defaults = config_queue(scheduler->worker->config, queue)->defaults;
    return json_integer_value(json_object_get(defaults, "attempts"));
}

/* Slots that nothing leased is waiting for: what is leased for them may be started at once. */
static size_t free_slots(size_t limit, size_t active, size_t leased)
{
    return active + leased < limit ? limit - active - leased : 0;
}

/* Each queue's share of want by weight first; a second request takes what the others left. */
static size_t choose_queues(struct scheduler *scheduler, struct feed *feed, size_t want,
                            bool shares)
{
    double weights = 0;
    size_t count = 0;

    qsort(scheduler->queues, scheduler->queue_count, sizeof(struct squeue *), by_pass);
    for (size_t i = 0; i < scheduler->queue_count; i++)
        if (scheduler->queues[i]->named && queue_room(scheduler, scheduler->queues[i]) > 0)
            weights += scheduler->queues[i]->weight;
    for (size_t i = 0; i < scheduler->queue_count; i++) {
        struct squeue *queue = scheduler->queues[i];
        size_t max = queue_room(scheduler, queue);
        if (!queue->named || queue->source != feed->source || max == 0)
            continue;
        if (shares)
            max = MIN(max, (size_t)((double)want * queue->weight / weights + 0.999));
        feed->asked[count++] = (struct lease_queue){
            .name = queue->name,
            .max = MIN(max, want),
            .start = free_slots(queue->limit, queue->active, queue->leased_count),
            .attempts = default_attempts(scheduler, queue->name),
        };
    }
    return count;
}

static void on_due(uv_timer_t *timer)
{
    struct scheduler *scheduler = timer->data;
    worker_recover(scheduler->worker); /* makes due jobs ready, then wakes us */
}

void scheduler_due(struct scheduler *scheduler, int64_t in_ms)
{
    uint64_t when = (uint64_t)MAX(in_ms, (int64_t)0);

    OBJ_CHECK(scheduler, SCHEDULER_MAGIC);
    if (!uv_is_active((uv_handle_t *)&scheduler->due) ||
        uv_timer_get_due_in(&scheduler->due) > when)
        (void)uv_timer_start(&scheduler->due, on_due, when, 0);
}

static void on_turn(uv_idle_t *turn);

/* Not at once: what this turn frees besides belongs into the same request.  Idle handles run before the broker takes what a turn has
 * submitted, so that the request shares a transaction with the ends of those that made room for it. */
static void ask_soon(struct feed *feed, bool shares)
{
    feed->wanted = true;
    feed->shares = shares;
    (void)uv_idle_start(&feed->scheduler->turn, on_turn);
}

static bool is_asking(const struct feed *feed)
{
    return feed->asking || feed->wanted;
}

/* One that is started already runs before the next is looked at: what ends at once may start those that wait. */
static void keep(struct feed *feed, struct lease *lease)
{
    struct scheduler *scheduler = feed->scheduler;
    bool started = lease->started;
    struct squeue *queue = obtain(scheduler, feed->source, lease->queue);
    struct attempt *attempt = queue != NULL ? attempt_new(feed->source, lease) : NULL;

    if (attempt == NULL) {
        log_error("out of memory: a leased job waits until its lease expires");
        lease_done(lease);
        return;
    }
    if (queue->active + queue->leased_count == 0)
        queue->pass = MAX(queue->pass, lowest_pass(scheduler));
    list_push_back(&queue->leased, &attempt->queue_node);
    queue->leased_count++;
    scheduler->leased++;
    if (started)
        attempt_run_started(attempt);
}

/* An answer is here: who found no room may look again. */
static void unblock(struct scheduler *scheduler)
{
    for (size_t i = 0; i < scheduler->feed_count; i++)
        if (scheduler->feeds[i].blocked)
            (void)uv_idle_start(&scheduler->turn, on_turn);
}

static void on_leased(struct broker_req *req)
{
    struct feed *feed = req->data;
    struct scheduler *scheduler = feed->scheduler;
    struct worker *worker = scheduler->worker;
    size_t want = req->lease.want, count = req->lease.count;

    OBJ_CHECK(scheduler, SCHEDULER_MAGIC);
    feed->asking = false;
    feed->coming = feed->coming_started = 0;
    feed->failing = req->status < 0;
    if (req->status < 0) {
        feed->dry = true; /* the next tick tries again */
        log_warn("%s", req->err.msg);
        unblock(scheduler);
        return;
    }
    feed->drained = req->lease.drained;
    feed->dry = count < want && feed->full_quota;
    if (req->lease.next_due_ms >= 0 && !worker->stopping)
        scheduler_due(scheduler, req->lease.next_due_ms);
    for (size_t i = 0; i < count; i++)
        keep(feed, &req->lease.leases[i]);
    if (feed->ask_again &&
        count > 0) /* a wake-up came meanwhile: perhaps the cancel of one of these */
        renew_ask(feed->source);

    if (worker->stopping) {
        scheduler_give_back(scheduler, NULL, 0);
    } else if (feed->ask_again) {
        feed->dry = false;
        scheduler_kick(scheduler);
    } else if (count < want && !feed->full_quota) {
        ask_soon(feed, false); /* shares held somebody back: take what is left */
        scheduler_kick(scheduler);
    } else {
        scheduler_kick(scheduler);
    }
    unblock(scheduler);
    worker_check_done(worker);
}

static void ask(struct feed *feed, bool shares)
{
    struct scheduler *scheduler = feed->scheduler;
    size_t want = room(scheduler, feed);

    feed->blocked = want == 0 && coming(scheduler, false) > 0;
    feed->wanted = feed->blocked;
    if (feed->blocked)
        return;
    feed->ask_again = false;
    if (want == 0 || scheduler->worker->closing)
        return;
    struct lease_queue *asked = realloc(feed->asked, (scheduler->queue_count + 1) * sizeof *asked);
    if (asked == NULL)
        return; /* the next tick tries again */
    feed->asked = asked;
    size_t count = scheduler->all ? 0 : choose_queues(scheduler, feed, want, shares);
    if (count == 0 && !scheduler->all)
        return;
    feed->full_quota = !shares || (count <= 1 && scheduler->feed_count == 1);
    feed->asking = true;
    feed->req = (struct broker_req){ .op = BROKER_LEASE, .done = on_leased, .data = feed };
    feed->req.lease.want = want;
    if (!feed->failing) { /* a broker that does not answer must not keep slots from the others */
        size_t start = free_slots(scheduler->concurrency,
                                  scheduler->active + coming(scheduler, true), scheduler->leased);
        feed->req.lease.start = feed->coming_started = start;
        feed->coming = want;
    }
    feed->req.lease.queues = feed->asked;
    feed->req.lease.queue_count = count;
    feed->req.lease.leases = feed->leases;
    broker_submit(feed->source->broker, &feed->req);
}

/* Whose turn it is among brokers: the lowest pass of a queue that has room. */
static double feed_pass(struct scheduler *scheduler, const struct feed *feed)
{
    double lowest = 0;
    bool any = false;

    for (size_t i = 0; i < scheduler->queue_count; i++) {
        const struct squeue *queue = scheduler->queues[i];
        if (queue->source != feed->source || queue_room(scheduler, queue) == 0)
            continue;
        if (!any || queue->pass < lowest)
            lowest = queue->pass;
        any = true;
    }
    return lowest;
}

static struct feed *next_feed(struct scheduler *scheduler)
{
    struct feed *best = NULL;
    double best_pass = 0;

    for (size_t i = 0; i < scheduler->feed_count; i++) {
        struct feed *feed = &scheduler->feeds[i];
        if (!feed->wanted || feed->blocked)
            continue;
        double pass = feed_pass(scheduler, feed);
        if (best == NULL || pass < best_pass) {
            best = feed;
            best_pass = pass;
        }
    }
    return best;
}

static void on_turn(uv_idle_t *turn)
{
    struct scheduler *scheduler = turn->data;
    struct feed *feed;

    OBJ_CHECK(scheduler, SCHEDULER_MAGIC);
    (void)uv_idle_stop(turn);
    for (size_t i = 0; i < scheduler->feed_count; i++) {
        scheduler->feeds[i].blocked = false;
        if (scheduler->feeds[i].asking || !scheduler->feeds[i].source->registered)
            scheduler->feeds[i].wanted = false; /* its answer sees to what follows */
    }
    while ((feed = next_feed(scheduler)) != NULL)
        ask(feed, feed->shares);      /* no longer wanted, or blocked */
    if (!scheduler_asking(scheduler)) /* it may have been all that was waited for */
        worker_check_done(scheduler->worker);
}

/* ---- slots ---- */

static struct squeue *next_queue(struct scheduler *scheduler)
{
    struct squeue *best = NULL;

    for (size_t i = 0; i < scheduler->queue_count; i++) {
        struct squeue *queue = scheduler->queues[i];
        if (queue->leased_count == 0 || queue->active >= queue->limit)
            continue;
        if (best == NULL || queue->pass < best->pass)
            best = queue;
    }
    return best;
}

/* The queue of an attempt: it was made when the lease came, and one that holds something is not taken away. */
static struct squeue *queue_of(struct scheduler *scheduler, const struct attempt *attempt)
{
    struct squeue *queue = find(scheduler, attempt->lease.queue);

    BUG_ON(queue == NULL);
    return queue;
}

void scheduler_unleased(struct scheduler *scheduler, struct attempt *attempt)
{
    OBJ_CHECK(scheduler, SCHEDULER_MAGIC);
    struct squeue *queue = queue_of(scheduler, attempt);

    BUG_ON(queue->leased_count == 0 || scheduler->leased == 0);
    list_remove(&attempt->queue_node);
    queue->leased_count--;
    scheduler->leased--;
}

void scheduler_taken(struct scheduler *scheduler, struct attempt *attempt)
{
    OBJ_CHECK(scheduler, SCHEDULER_MAGIC);
    struct squeue *queue = queue_of(scheduler, attempt);

    queue->active++;
    scheduler->active++;
    queue->pass += 1.0 / queue->weight;
}

size_t scheduler_queues(const struct scheduler *scheduler)
{
    OBJ_CHECK(scheduler, SCHEDULER_MAGIC);
    return scheduler->queue_count;
}

void scheduler_kick(struct scheduler *scheduler)
{
    OBJ_CHECK(scheduler, SCHEDULER_MAGIC);
    struct squeue *queue;

    while (!scheduler->worker->stopping && scheduler->active < scheduler->concurrency &&
           (queue = next_queue(scheduler)) != NULL)
        attempt_start(LIST_ENTRY(queue->leased.next, struct attempt, queue_node));
    /* Ask early enough that slots do not run dry, and late enough that many jobs share a transaction. */
    for (size_t i = 0; i < scheduler->feed_count; i++) {
        struct feed *feed = &scheduler->feeds[i];
        if (!is_asking(feed) && scheduler->leased <= ahead(scheduler, feed->source) / 2 &&
            !feed->dry)
            ask_soon(feed, true);
    }
}

void scheduler_wake(struct scheduler *scheduler, const struct source *source)
{
    OBJ_CHECK(scheduler, SCHEDULER_MAGIC);
    for (size_t i = 0; i < scheduler->feed_count; i++) {
        struct feed *feed = &scheduler->feeds[i];
        if (source != NULL && feed->source != source)
            continue;
        feed->dry = false;
        if (feed->asking)
            feed->ask_again = true;
        else
            ask_soon(feed, true);
    }
}

void scheduler_freed(struct scheduler *scheduler, struct attempt *attempt)
{
    OBJ_CHECK(scheduler, SCHEDULER_MAGIC);
    struct squeue *queue = queue_of(scheduler, attempt);

    BUG_ON(queue->active == 0 || scheduler->active == 0);
    queue->active--;
    scheduler->active--;
    roll_window(scheduler);
    scheduler->window_count++;
    struct feed *feed = feed_of(scheduler, queue->source);
    feed->drained = false;
    if (queue->limit < SIZE_MAX) /* it may not have been asked for while it was full */
        feed->dry = false;
    scheduler_kick(scheduler);
}

struct give_back {
    struct broker_req req;
    struct lease_ref refs[LEASE_MAX];
    char *ids[LEASE_MAX];
};

static void on_given_back(struct broker_req *req)
{
    struct give_back *give = req->data;

    if (req->status < 0)
        log_warn("%s, the jobs wait for the lease to expire", req->err.msg);
    for (size_t i = 0; i < req->give_back.count; i++)
        free(give->ids[i]);
    free(give);
}

static void collect(struct squeue *queue, int64_t before_ms, struct give_back *give)
{
    LIST_FOREACH(attempt, &queue->leased, struct attempt, queue_node) {
        size_t n = give->req.give_back.count;
        if (n == LEASE_MAX || attempt->leased_mono_ms > before_ms ||
            (give->ids[n] = strdup(attempt->lease.id)) == NULL)
            continue;
        give->refs[n] = (struct lease_ref){ .id = give->ids[n], .attempt = attempt->lease.attempt };
        give->req.give_back.count++;
        attempt_drop(attempt);
    }
}

static void give_back_to(struct scheduler *scheduler, const struct source *source,
                         int64_t before_ms)
{
    struct give_back *give = calloc(1, sizeof *give);

    if (give == NULL)
        return; /* the next tick tries again */
    give->req = (struct broker_req){ .op = BROKER_GIVE_BACK, .done = on_given_back, .data = give };
    give->req.give_back.refs = give->refs;
    for (size_t i = 0; i < scheduler->queue_count; i++)
        if (scheduler->queues[i]->source == source)
            collect(scheduler->queues[i], before_ms, give);
    if (give->req.give_back.count > 0)
        broker_submit(source->broker, &give->req);
    else
        free(give);
}

void scheduler_give_back(struct scheduler *scheduler, const struct source *source,
                         int64_t older_than_ms)
{
    int64_t before_ms = clock_mono_ms() - older_than_ms;

    OBJ_CHECK(scheduler, SCHEDULER_MAGIC);
    for (size_t i = 0; i < scheduler->feed_count && scheduler->leased > 0; i++)
        if (source == NULL || scheduler->feeds[i].source == source)
            give_back_to(scheduler, scheduler->feeds[i].source, before_ms);
}

/* ---- life ---- */

void scheduler_configure(struct scheduler *scheduler)
{
    OBJ_CHECK(scheduler, SCHEDULER_MAGIC);
    const struct worker *worker = scheduler->worker;

    scheduler->concurrency = (size_t)(worker->setup.concurrency > 0 ? worker->setup.concurrency
                                                                    : worker->config->concurrency);
    name_queues(scheduler);
    for (size_t i = 0; i < scheduler->queue_count; i++)
        configure_queue(scheduler, scheduler->queues[i]);
}

int scheduler_new(struct worker *worker, struct scheduler **ret)
{
    struct scheduler *scheduler = calloc(1, sizeof *scheduler);

    if (scheduler == NULL)
        return -ENOMEM;
    scheduler->feeds = calloc(worker->source_count, sizeof *scheduler->feeds);
    if (scheduler->feeds == NULL) {
        free(scheduler);
        return -ENOMEM;
    }
    for (; scheduler->feed_count < worker->source_count; scheduler->feed_count++)
        scheduler->feeds[scheduler->feed_count] =
            (struct feed){ .scheduler = scheduler,
                           .source = &worker->sources[scheduler->feed_count] };
    scheduler->magic = SCHEDULER_MAGIC;
    scheduler->worker = worker;
    (void)uv_timer_init(&worker->loop, &scheduler->due);
    (void)uv_idle_init(&worker->loop, &scheduler->turn);
    scheduler->due.data = scheduler->turn.data = scheduler;
    scheduler_configure(scheduler);
    *ret = scheduler;
    return 0;
}

void scheduler_close(struct scheduler *scheduler)
{
    OBJ_CHECK(scheduler, SCHEDULER_MAGIC);
    uv_close((uv_handle_t *)&scheduler->due, NULL);
    uv_close((uv_handle_t *)&scheduler->turn, NULL);
}

struct scheduler *scheduler_free(struct scheduler *scheduler)
{
    if (scheduler == NULL)
        return NULL;
    for (size_t i = 0; i < scheduler->queue_count; i++) {
        free(scheduler->queues[i]->name);
        free(scheduler->queues[i]);
    }
    free(scheduler->queues);
    for (size_t i = 0; i < scheduler->feed_count; i++)
        free(scheduler->feeds[i].asked);
    free(scheduler->feeds);
    OBJ_FINI(scheduler);
    free(scheduler);
    return NULL;
}

bool scheduler_drained(const struct scheduler *scheduler)
{
    OBJ_CHECK(scheduler, SCHEDULER_MAGIC);
    for (size_t i = 0; i < scheduler->feed_count; i++)
        if (!scheduler->feeds[i].drained || is_asking(&scheduler->feeds[i]))
            return false;
    return scheduler->active == 0 && scheduler->leased == 0;
}

bool scheduler_asking(const struct scheduler *scheduler)
{
    OBJ_CHECK(scheduler, SCHEDULER_MAGIC);
    for (size_t i = 0; i < scheduler->feed_count; i++)
        if (scheduler->feeds[i].asking)
            return true;
    return false;
}

int64_t scheduler_concurrency(const struct scheduler *scheduler)
{
    OBJ_CHECK(scheduler, SCHEDULER_MAGIC);
    return (int64_t)scheduler->concurrency;
}

size_t scheduler_active(const struct scheduler *scheduler)
{
    OBJ_CHECK(scheduler, SCHEDULER_MAGIC);
    return scheduler->active;
}
