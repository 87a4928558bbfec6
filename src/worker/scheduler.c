/* scheduler.c - contract in scheduler.h. */
#include "worker/scheduler.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/log.h"
#include "worker/attempt.h"

#define SCHEDULER_MAGIC 0x73636864u
#define LEASE_MAX       256 /* jobs in one request */
#define SETTLING_MAX    256 /* unsettled attempts beyond the slots, before leasing pauses */
#define RATE_WINDOW_MS  1000
#define QUEUES_KEPT     256 /* more are kept only while they hold something */
#define ASKS_MAX        2   /* requests for leases of one broker under way, where that helps */
#define COMPLAIN_MS     60000

struct squeue {
    char *name;
    struct source *source; /* the broker that has it */
    size_t limit;          /* slots of this queue; SIZE_MAX = none of its own */
    double weight, pass;
    size_t active;      /* attempts that hold a slot */
    size_t coming;      /* at most: what requests under way may bring */
    struct list leased; /* attempts that wait for one, oldest first */
    size_t leased_count;
    bool named; /* by configuration or --queue: asked for by name */
    bool ever_named;
};

/* A request for leases. */
struct ask {
    struct feed *feed;
    struct broker_req req;
    bool busy, full_quota;
    uint64_t wakes, looks;         /* the feed's when it was made */
    size_t coming, coming_started; /* asked for, so that nobody else counts on the same slots */
    struct lease_queue *queues;
    struct lease leases[LEASE_MAX];
};

/* What is asked of one broker. */
struct feed {
    struct scheduler *scheduler;
    struct source *source;
    struct ask asks[ASKS_MAX];
    size_t ask_count;
    uint64_t wakes, looks; /* how often others, and we ourselves, had reason to look again */
    bool wanted, shares;   /* a request is due at the end of this turn, and for which part */
    /* It found all room promised to other brokers: it looks again when one of them has answered. */
    bool blocked;
    bool failing;   /* the last request did */
    char said[240]; /* why, as the log says */
    int64_t said_ms;
    bool answered;
    bool dry; /* the broker had less than we wanted: only a wake-up makes it worth asking again */
    bool drained;
};

struct scheduler {
    uint32_t magic;
    struct worker *worker;
    size_t concurrency;
    struct squeue **queues;
    size_t queue_count;
    bool all;     /* serve whatever queues the broker has */
    bool had_job; /* since the start */
    size_t active, leased;

    struct feed *feeds; /* one a broker */
    size_t feed_count;
    /* Active: requests are due at the end of this turn, when all has freed its slots that will. */
    uv_idle_t turn;
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
        BUG_ON(source == NULL); /* reload.c refuses brokers that are new */
        struct squeue *queue = obtain(scheduler, source, name);
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

/* What was asked for may come. */
static size_t coming(const struct scheduler *scheduler, bool started)
{
    size_t sum = 0;

    for (size_t i = 0; i < scheduler->feed_count; i++)
        for (size_t k = 0; k < scheduler->feeds[i].ask_count; k++) {
            const struct ask *ask = &scheduler->feeds[i].asks[k];
            sum += started ? ask->coming_started : ask->coming;
        }
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
    size_t held = queue->active + queue->leased_count + queue->coming;
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
static size_t choose_queues(struct scheduler *scheduler, const struct feed *feed, size_t want,
                            bool shares, struct lease_queue *queues)
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
        queues[count++] = (struct lease_queue){
            .name = queue->name,
            .max = MIN(max, want),
            .start = free_slots(queue->limit, queue->active + queue->coming, queue->leased_count),
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

static size_t busy_asks(const struct feed *feed)
{
    size_t count = 0;

    for (size_t i = 0; i < feed->ask_count; i++)
        count += feed->asks[i].busy;
    return count;
}

static struct ask *free_ask(struct feed *feed)
{
    for (size_t i = 0; i < feed->ask_count; i++)
        if (!feed->asks[i].busy)
            return &feed->asks[i];
    return NULL;
}

/* What a request may bring counts as held until it has brought it. */
static void promise(struct ask *ask, bool made)
{
    for (size_t i = 0; i < ask->req.lease.queue_count; i++) {
        const struct lease_queue *asked = &ask->queues[i];
        struct squeue *queue = find(ask->feed->scheduler, asked->name);
        queue->coming += made ? asked->max : -asked->max;
    }
}

/* One that is started already runs before the next is looked at: what ends at once may start those that wait. */
static void keep(struct feed *feed, struct lease *lease)
{
    struct scheduler *scheduler = feed->scheduler;
    bool started = lease->started;

    if (attempt_is_here(feed->source, lease)) {
        lease_done(lease);
        return;
    }
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
    scheduler->had_job = true;
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

static void kick(struct scheduler *scheduler);

/* Whoever has misspelt a queue waits for nothing, and is to see it: said once, of the first answer. */
static void say_if_nothing_yet(struct feed *feed, const struct broker_req *req)
{
    const struct scheduler *scheduler = feed->scheduler;
    bool first = !feed->answered;
    SCOPED_BUF names = { 0 };

    feed->answered = true;
    if (!first || !req->lease.drained || req->lease.count > 0 || req->lease.queue_count == 0 ||
        scheduler->worker->setup.drain)
        return;
    for (size_t i = 0; i < req->lease.queue_count; i++)
        if (buf_addf(&names, "%s'%s'", i > 0 ? ", " : "", req->lease.queues[i].name) < 0)
            return;
    log_info("no job yet in queue%s %s", req->lease.queue_count > 1 ? "s" : "", names.data);
}

/* Once, and then when there is another reason, or after a while. */
static void say_failing(struct feed *feed, const char *why)
{
    int64_t now_ms = clock_mono_ms();

    if (feed->failing && strncmp(why, feed->said, sizeof feed->said - 1) == 0 &&
        now_ms < feed->said_ms + COMPLAIN_MS)
        return;
    (void)snprintf(feed->said, sizeof feed->said, "%s", why);
    feed->said_ms = now_ms;
    log_warn("%s", why);
}

static void on_leased(struct broker_req *req)
{
    struct ask *ask = req->data;
    struct feed *feed = ask->feed;
    struct scheduler *scheduler = feed->scheduler;
    struct worker *worker = scheduler->worker;
    size_t want = req->lease.want, count = req->lease.count;
    bool told = ask->wakes != feed->wakes, again = told || ask->looks != feed->looks;

    OBJ_CHECK(scheduler, SCHEDULER_MAGIC);
    promise(ask, false);
    ask->busy = false;
    ask->coming = ask->coming_started = 0;
    if (req->status < 0) {
        say_failing(feed, req->err.msg);
        feed->failing = feed->dry = true; /* the next tick tries again */
        unblock(scheduler);
        return;
    }
    feed->failing = false;
    feed->drained = req->lease.drained;
    say_if_nothing_yet(feed, req);
    feed->dry = count < want && ask->full_quota && !again;
    if (req->lease.next_due_ms >= 0 && !worker->stopping)
        scheduler_due(scheduler, req->lease.next_due_ms);
    for (size_t i = 0; i < count; i++)
        keep(feed, &ask->leases[i]);
    if (told && count > 0) /* a wake-up came meanwhile: perhaps the cancel of one of these */
        renew_ask(feed->source);

    if (worker->stopping)
        scheduler_give_back(scheduler, NULL, 0);
    else if (count < want && !ask->full_quota && !again)
        ask_soon(feed, false); /* shares held somebody back: take what is left */
    kick(scheduler);
    unblock(scheduler);
    worker_check_done(worker);
}

/* How much a further request is for.  Of several under way each is for half of the slots, so that the broker works for one half while the jobs of the
 * other run; and for less than a quarter none is made. */
static size_t ask_size(struct scheduler *scheduler, const struct feed *feed)
{
    size_t want = room(scheduler, feed);

    if (feed->ask_count == 1)
        return want;
    if (busy_asks(feed) > 0 && want < scheduler->concurrency / 4)
        return 0;
    return MIN(want, (scheduler->concurrency + 1) / 2);
}

static void ask(struct feed *feed, bool shares)
{
    struct scheduler *scheduler = feed->scheduler;
    struct ask *ask = free_ask(feed);
    size_t want = ask_size(scheduler, feed), count = 0;

    feed->blocked = want == 0 && busy_asks(feed) == 0 && coming(scheduler, false) > 0;
    feed->wanted = feed->blocked;
    if (want == 0 || scheduler->worker->closing)
        return;
    if (!scheduler->all) {
        struct lease_queue *queues =
            realloc(ask->queues, (scheduler->queue_count + 1) * sizeof *queues);
        if (queues == NULL)
            return; /* the next tick tries again */
        ask->queues = queues;
        count = choose_queues(scheduler, feed, want, shares, queues);
        if (count == 0)
            return;
    }
    ask->full_quota = !shares || (count <= 1 && scheduler->feed_count == 1);
    ask->busy = true;
    ask->wakes = feed->wakes;
    ask->looks = feed->looks;
    ask->req = (struct broker_req){ .op = BROKER_LEASE, .done = on_leased, .data = ask };
    ask->req.lease.want = want;
    if (!feed->failing) { /* a broker that does not answer must not keep slots from the others */
        size_t start = free_slots(scheduler->concurrency,
                                  scheduler->active + coming(scheduler, true), scheduler->leased);
        ask->req.lease.start = ask->coming_started = MIN(start, want);
        ask->coming = want;
    }
    ask->req.lease.queues = ask->queues;
    ask->req.lease.queue_count = count;
    ask->req.lease.leases = ask->leases;
    promise(ask, true);
    broker_submit(feed->source->broker, &ask->req);
    feed->wanted = free_ask(feed) != NULL && ask_size(scheduler, feed) > 0;
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
        if (free_ask(&scheduler->feeds[i]) == NULL || !scheduler->feeds[i].source->registered)
            scheduler->feeds[i].wanted = false; /* an answer sees to what follows */
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

/* Something changed: start what can be started, lease what there is room for. */
static void kick(struct scheduler *scheduler)
{
    struct squeue *queue;

    while (!scheduler->worker->stopping && scheduler->active < scheduler->concurrency &&
           (queue = next_queue(scheduler)) != NULL)
        attempt_start(LIST_ENTRY(queue->leased.next, struct attempt, queue_node));
    /* Ask early enough that slots do not run dry, and late enough that many jobs share a transaction. */
    for (size_t i = 0; i < scheduler->feed_count; i++) {
        struct feed *feed = &scheduler->feeds[i];
        if (!feed->wanted && free_ask(feed) != NULL && !feed->dry &&
            scheduler->leased <= ahead(scheduler, feed->source) / 2)
            ask_soon(feed, true);
    }
}

static void look(struct scheduler *scheduler, const struct source *source, bool told)
{
    for (size_t i = 0; i < scheduler->feed_count; i++) {
        struct feed *feed = &scheduler->feeds[i];
        if (source != NULL && feed->source != source)
            continue;
        feed->wakes += told;
        feed->looks++;
        feed->dry = false;
        if (free_ask(feed) != NULL)
            ask_soon(feed, true);
    }
}

void scheduler_wake(struct scheduler *scheduler, const struct source *source)
{
    OBJ_CHECK(scheduler, SCHEDULER_MAGIC);
    look(scheduler, source, true);
}

void scheduler_look(struct scheduler *scheduler, const struct source *source)
{
    OBJ_CHECK(scheduler, SCHEDULER_MAGIC);
    look(scheduler, source, false);
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
    kick(scheduler);
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
    for (; scheduler->feed_count < worker->source_count; scheduler->feed_count++) {
        struct feed *feed = &scheduler->feeds[scheduler->feed_count];
        feed->scheduler = scheduler;
        feed->source = &worker->sources[scheduler->feed_count];
        feed->ask_count = broker_leases_overlap(feed->source->broker) ? ASKS_MAX : 1;
        for (size_t i = 0; i < ASKS_MAX; i++)
            feed->asks[i].feed = feed;
    }
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
        for (size_t k = 0; k < ASKS_MAX; k++)
            free(scheduler->feeds[i].asks[k].queues);
    free(scheduler->feeds);
    OBJ_FINI(scheduler);
    free(scheduler);
    return NULL;
}

bool scheduler_drained(const struct scheduler *scheduler)
{
    OBJ_CHECK(scheduler, SCHEDULER_MAGIC);
    for (size_t i = 0; i < scheduler->feed_count; i++)
        if (!scheduler->feeds[i].drained || scheduler->feeds[i].wanted ||
            busy_asks(&scheduler->feeds[i]) > 0)
            return false;
    return scheduler->active == 0 && scheduler->leased == 0;
}

void scheduler_say_if_idle(const struct scheduler *scheduler)
{
    OBJ_CHECK(scheduler, SCHEDULER_MAGIC);
    if (scheduler->had_job)
        return;
    if (!scheduler->all && scheduler->queue_count == 1)
        log_info("there was no job in queue '%s'", scheduler->queues[0]->name);
    else
        log_info("there was no job");
}

bool scheduler_asking(const struct scheduler *scheduler)
{
    OBJ_CHECK(scheduler, SCHEDULER_MAGIC);
    for (size_t i = 0; i < scheduler->feed_count; i++)
        if (busy_asks(&scheduler->feeds[i]) > 0)
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
