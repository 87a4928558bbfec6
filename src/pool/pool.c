/* pool.c - one pool: who works, who comes, who goes.  Contract in pool.h.
 *
 * pool_tend() is the whole policy, called whenever something has changed: it looks at the workers as they are and does what
 * is missing, so no change can be forgotten.
 *
 *   fresh   spawning, greeting or ready, and neither being replaced nor spent: those that the pool counts on
 *   due     should be replaced (age, memory, contamination, configuration): becomes `replacing` when few others are
 *   replacing  not fresh any more, so its successor is started; works on until that one is ready
 *   spent   has had its max_jobs: takes no more
 */
#include "pool/pool.h"

#include <stdio.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/random.h"
#include "pool/pool_int.h"

#define TICK_MS          500
#define LOOK_MS          5000 /* between looks at a worker whose memory has no bound */
#define LOOK_BOUND_MS    1000 /* … has one */
#define IDLE_LOOK_MS     50   /* idle for so long: no job is likely to come into the look */
#define EARLY_MS         1000 /* who dies so soon, idle and without a job done, has failed to start */
#define STEADY_MS        5000 /* who has lived so long has started well */
#define BACKOFF_FIRST_MS 200
#define BACKOFF_LAST_MS  30000
/* The longest after a HELLO: it can start, and may have been killed from outside. */
#define BACKOFF_READY_MS 1000
#define FAILING_MS       5000 /* a pool that has had no worker for so long keeps no job waiting */
#define LEAD_PART        10   /* the successor is started when a tenth of max_jobs is left */

/* ---- counting ---- */

static bool is_fresh(const struct warm *warm)
{
    return (warm->state == WARM_SPAWNING || warm->state == WARM_GREETING ||
            warm->state == WARM_READY) &&
           !warm->replacing && !warm->spent;
}

struct census {
    int64_t fresh, fresh_ready, starting, replacing,
        room;     /* room: jobs that the fresh could take together */
    int64_t busy; /* jobs that the fresh hold */
};

static struct census count(const struct pool *pool)
{
    struct census census = { 0 };

    LIST_FOREACH(warm, &pool->warms, struct warm, node) {
        census.starting += warm->state == WARM_SPAWNING || warm->state == WARM_GREETING;
        census.replacing += warm->replacing && warm->state == WARM_READY;
        if (!is_fresh(warm))
            continue;
        census.fresh++;
        census.fresh_ready += warm->state == WARM_READY;
        census.busy += (int64_t)warm->held_count;
    }
    return census;
}

/* How many fresh workers there should be. */
static int64_t wanted(const struct pool *pool, const struct census *census)
{
    int64_t jobs = census->busy + (int64_t)pool->waiting_count;
    int64_t least = pool->leaving ? 0 : pool->options.size_min;
    int64_t needed = (jobs + pool->options.concurrency - 1) / pool->options.concurrency;

    return pool->closing ? 0 : MIN(MAX(needed, least), pool->options.size_max);
}

/* ---- coming ---- */

static void note_failure(struct pool *pool, const char *why, int64_t started_ms, int64_t longest_ms)
{
    int64_t now = clock_mono_ms();

    pool->failed_starts++;
    (void)snprintf(pool->last_error, sizeof pool->last_error, "%.230s", why);
    /* Of the same volley: no further news. */
    if (pool->failures > 0 && started_ms < pool->failed_ms) {
        log_warn("pool %s: a worker failed to start: %s", pool->options.name, why);
        return;
    }
    int64_t delay_ms = MIN((int64_t)BACKOFF_FIRST_MS << MIN(pool->failures, 10), longest_ms);
    delay_ms = (int64_t)((double)delay_ms * (0.75 + random_01(&pool->pools->random) / 2));
    if (pool->failures++ == 0)
        pool->failing_since_ms = now;
    pool->failed_ms = now;
    pool->next_start_ms = now + delay_ms;
    log_warn("pool %s: a worker failed to start: %s; trying again in %" PRId64 " ms",
             pool->options.name, why, delay_ms);
}

static void start_missing(struct pool *pool)
{
    struct census census = count(pool);
    int64_t missing = wanted(pool, &census) - census.fresh;

    while (missing-- > 0 && clock_mono_ms() >= pool->next_start_ms) {
        if (pool->failures > 0 && count(pool).starting > 0)
            return; /* one scout at a time */
        int r = warm_start(pool);
        if (r < 0)
            note_failure(pool, strerror(-r), clock_mono_ms(), BACKOFF_LAST_MS);
    }
}

void pool_note_end(struct pool *pool, struct warm *warm)
{
    bool early =
        !warm->was_ready || (warm->jobs_given == 0 && clock_mono_ms() - warm->ready_ms < EARLY_MS);

    if (warm->expected || warm->killed_for_job)
        return;
    if (early) {
        note_failure(pool, warm->why, warm->started_ms,
                     warm->was_ready ? BACKOFF_READY_MS : BACKOFF_LAST_MS);
        return;
    }
    pool->deaths++;
    (void)snprintf(pool->last_error, sizeof pool->last_error, "worker %d: %.200s", (int)warm->pid,
                   warm->why);
    log_warn("pool %s: worker %d died with %zu job%s: %s", pool->options.name, (int)warm->pid,
             warm->held_count, warm->held_count == 1 ? "" : "s", warm->why);
}

/* ---- going ---- */

static void find_due(struct pool *pool)
{
    int64_t now = clock_mono_ms();

    LIST_FOREACH(warm, &pool->warms, struct warm, node) {
        if (warm->state != WARM_READY || warm->due != NULL)
            continue;
        int64_t lead = MAX(warm->jobs_max / LEAD_PART, warm->options.concurrency);
        if (warm->version != pool->version)
            warm->due = "configuration";
        else if (warm->age_max_ms > 0 && now - warm->started_ms >= warm->age_max_ms)
            warm->due = "max_age";
        else if (warm->jobs_max > 0 && warm->jobs_given > 0 &&
                 warm->jobs_given >= warm->jobs_max - lead)
            warm->due = "max_jobs";
    }
}

/* Few at a time, so that most of the pool works on (R63). */
static void mark_due(struct pool *pool)
{
    int64_t most = MAX(pool->options.size_max / 4, (int64_t)1);
    int64_t marked = count(pool).replacing;

    find_due(pool);
    LIST_FOREACH(warm, &pool->warms, struct warm, node) {
        if (marked >= most)
            return;
        if (warm->state == WARM_READY && warm->due != NULL && !warm->replacing) {
            warm->replacing = true;
            marked++;
            log_debug("pool", "pool %s: worker %d is being replaced: %s", pool->options.name,
                      (int)warm->pid, warm->due);
        }
    }
}

static void retire(struct pool *pool, struct warm *warm, const char *why)
{
    pool->recycles++;
    warm_retire(warm, why);
}

/* Who has had its jobs goes; who is being replaced goes when the successors are there. */
static void retire_replaced(struct pool *pool)
{
    struct census census = count(pool);
    bool succeeded = census.fresh_ready >= wanted(pool, &census);

    LIST_FOREACH(warm, &pool->warms, struct warm, node)
        if (warm->state == WARM_READY && (warm->spent || (warm->replacing && succeeded)))
            retire(pool, warm, warm->due != NULL ? warm->due : "max_jobs");
}

static void shrink(struct pool *pool)
{
    struct census census = count(pool);
    int64_t spare = census.fresh - wanted(pool, &census), now = clock_mono_ms();

    LIST_FOREACH(warm, &pool->warms, struct warm, node) {
        if (spare <= 0)
            return;
        if (!is_fresh(warm) || warm->held_count > 0 ||
            (warm->state == WARM_READY && !pool->closing && !pool->leaving &&
             now - warm->idle_since_ms < pool->options.shrink_after_ms))
            continue;
        if (warm->state != WARM_READY && !pool->closing)
            continue;
        warm_retire(warm, pool->closing ? "shutdown" : "the pool shrinks");
        spare--;
    }
}

static void on_closed(uv_handle_t *handle)
{
    struct pool *pool = handle->data;
    OBJ_CHECK(pool, POOL_MAGIC);

    if (--pool->handles == 0)
        pools_forget(pool->pools, pool);
}

static void try_close(struct pool *pool)
{
    if (!pool->closing || pool->warm_count > 0 || uv_is_closing((uv_handle_t *)&pool->tick))
        return;
    uv_close((uv_handle_t *)&pool->tick, on_closed);
    uv_close((uv_handle_t *)&pool->turn, on_closed);
}

void pool_tend(struct pool *pool)
{
    OBJ_CHECK(pool, POOL_MAGIC);

    if (pool->leaving && pool->waiting_count == 0 && pool->held_count == 0)
        pool->closing = true;
    if (!pool->closing) {
        mark_due(pool);
        start_missing(pool);
        pool_serve(pool);
    }
    retire_replaced(pool);
    shrink(pool);
    try_close(pool);
}

/* ---- jobs ---- */

static bool better(const struct warm *a, const struct warm *b)
{
    if (b == NULL || a->replacing != b->replacing)
        return b == NULL || b->replacing;
    return a->held_count < b->held_count;
}

static struct warm *pick(struct pool *pool)
{
    struct warm *best = NULL;

    LIST_FOREACH(warm, &pool->warms, struct warm, node)
        if (warm_has_room(warm) && better(warm, best))
            best = warm;
    return best;
}

static void refuse(struct pool_job *job, int code, const char *why)
{
    struct verdict verdict = {
        .cause = CAUSE_SPAWN, .exit_code = -1, .stage = STAGE_PREPARE, .spawn_errno = code
    };

    (void)snprintf(verdict.error, sizeof verdict.error, "%.230s", why);
    job->events->on_lost(job->arg, &verdict);
}

static struct pool_job *take_waiting(struct pool *pool)
{
    struct pool_job *job = LIST_ENTRY(list_pop_front(&pool->waiting), struct pool_job, node);

    pool->waiting_count--;
    job->waiting = false;
    return job;
}

static bool is_failing(const struct pool *pool, const struct census *census)
{
    return census->fresh_ready == 0 && census->replacing == 0 && pool->failures > 0;
}

/* Jobs hold slots of the whole worker while they wait.  Where no worker can be had they go back to the queue, uncharged, and come
 * again later and later: a broken pool must not keep everybody else from running. */
static void send_back(struct pool *pool)
{
    struct census census = count(pool);
    char why[240];

    if (!is_failing(pool, &census) || clock_mono_ms() - pool->failing_since_ms < FAILING_MS)
        return;
    (void)snprintf(why, sizeof why, "pool '%.60s' has no worker: %.150s", pool->options.name,
                   pool->last_error);
    while (pool->waiting_count > 0)
        refuse(take_waiting(pool), EAGAIN, why);
}

static void on_turn(uv_idle_t *turn);

void pool_serve(struct pool *pool)
{
    bool changed = pool->leaving;
    struct warm *warm;

    while (pool->waiting_count > 0 && (warm = pick(pool)) != NULL) {
        struct pool_job *job = take_waiting(pool);
        int r = warm_give(warm, job);
        if (r == -EMSGSIZE)
            refuse(job, E2BIG, "the job's data is longer than a frame of 16 MiB can hold");
        else if (r < 0)
            refuse(job, -r, strerror(-r));
        changed |= warm->jobs_max > 0;
    }
    if (changed) /* somebody may be due, or spent */
        (void)uv_idle_start(&pool->turn, on_turn);
}

static void on_turn(uv_idle_t *turn)
{
    struct pool *pool = turn->data;

    (void)uv_idle_stop(turn);
    pool_tend(pool);
}

void pool_submit(struct pool *pool, struct pool_job *job, const struct peer_task *task,
                 const struct pool_job_events *events, void *arg)
{
    OBJ_CHECK(pool, POOL_MAGIC);
    *job = (struct pool_job){
        .pool = pool,
        .task = task,
        .events = events,
        .arg = arg,
        .waiting = true,
    };
    list_push_back(&pool->waiting, &job->node);
    pool->waiting_count++;
    (void)uv_idle_start(&pool->turn, on_turn);
}

void pool_give_again(struct pool *pool, struct pool_job *job)
{
    job->waiting = true;
    list_push_front(&pool->waiting, &job->node);
    pool->waiting_count++;
    (void)uv_idle_start(&pool->turn, on_turn);
}

bool pool_job_withdraw(struct pool_job *job)
{
    if (!job->waiting)
        return false;
    job->waiting = false;
    list_remove(&job->node);
    job->pool->waiting_count--;
    /* It may have been the last of a pool that leaves. */
    (void)uv_idle_start(&job->pool->turn, on_turn);
    return true;
}

void pool_job_cancel(struct pool_job *job, const char *reason, int64_t grace_ms)
{
    job->cancelled = true;
    peer_job_cancel(&job->peer, reason, grace_ms);
}

void pool_job_kill(struct pool_job *job)
{
    if (job->warm == NULL)
        return;
    job->stopped = true;
    job->warm->killed_for_job = true;
    warm_stop(job->warm, CAUSE_SHUTDOWN, 0);
}

/* ---- time ---- */

static void look(struct warm *warm, int64_t now)
{
    int64_t every = warm->options.max_memory_bytes > 0 ? LOOK_BOUND_MS : LOOK_MS;
    bool idle = warm->held_count == 0 && now - warm->idle_since_ms >= IDLE_LOOK_MS;

    if (idle && warm->looked_jobs != warm->jobs_given)
        warm_look(warm, true);
    else if (now - warm->looked_ms >= every)
        warm_look(warm, idle && !warm->have_base);
}

static void on_tick(uv_timer_t *timer)
{
    struct pool *pool = timer->data;
    int64_t now = clock_mono_ms();
    OBJ_CHECK(pool, POOL_MAGIC);

    LIST_FOREACH(warm, &pool->warms, struct warm, node) {
        if (warm->state != WARM_READY)
            continue;
        if (now - warm->ready_ms >= STEADY_MS)
            pool->failures = 0;
        look(warm, now);
    }
    send_back(pool);
    pool_tend(pool);
}

/* ---- life ---- */

int pool_new(struct pools *pools, const struct pool_options *options, struct pool **ret)
{
    struct pool *pool = calloc(1, sizeof *pool);

    if (pool == NULL)
        return -ENOMEM;
    *pool = (struct pool){ .magic = POOL_MAGIC, .pools = pools, .handles = 2 };
    if (pool_options_copy(options, &pool->options) < 0) {
        free(pool);
        return -ENOMEM;
    }
    list_init(&pool->warms);
    list_init(&pool->waiting);
    (void)uv_idle_init(pools->loop, &pool->turn);
    (void)uv_timer_init(pools->loop, &pool->tick);
    pool->turn.data = pool->tick.data = pool;
    (void)uv_timer_start(&pool->tick, on_tick, TICK_MS, TICK_MS);
    (void)uv_idle_start(&pool->turn, on_turn);
    list_push_back(&pools->list, &pool->node);
    *ret = pool;
    return 0;
}

int pool_change(struct pool *pool, const struct pool_options *options)
{
    pool->leaving = false;
    if (pool_options_same(&pool->options, options))
        return 0;

    struct pool_options copy;
    int r = pool_options_copy(options, &copy);
    if (r < 0)
        return r;
    pool_options_done(&pool->options);
    pool->options = copy;
    pool->version++;
    pool->failures = 0; /* perhaps this is the cure */
    pool->next_start_ms = 0;
    (void)uv_idle_start(&pool->turn, on_turn);
    return 0;
}

void pool_leave(struct pool *pool)
{
    pool->leaving = true;
    (void)uv_idle_start(&pool->turn, on_turn);
}

void pool_close(struct pool *pool)
{
    BUG_ON(pool->waiting_count + pool->held_count > 0);
    pool->closing = true;
    pool_tend(pool);
}

/* ---- for people ---- */

static const char *state_name(const struct pool *pool)
{
    struct census census = count(pool);

    if (pool->closing || pool->leaving)
        return "draining";
    if (census.fresh_ready > 0 || census.replacing > 0)
        return "ready";
    if (is_failing(pool, &census))
        return "failing";
    return pool->warm_count > 0 ? "starting" : "empty";
}

json_t *pool_json(const struct pool *pool)
{
    json_t *workers = json_array();
    int64_t memory = 0;

    LIST_FOREACH(warm, &pool->warms, struct warm, node) {
        json_t *one = warm_json(warm);
        memory += json_integer_value(json_object_get(one, "memory"));
        (void)json_array_append_new(workers, one);
    }
    return json_pack(
        "{s:s, s:s, s:{s:I, s:I}, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:s?, s:o}", "name",
        pool->options.name, "state", state_name(pool), "size", "min",
        (json_int_t)pool->options.size_min, "max", (json_int_t)pool->options.size_max,
        "concurrency", (json_int_t)pool->options.concurrency, "busy", (json_int_t)pool->held_count,
        "waiting", (json_int_t)pool->waiting_count, "jobs", (json_int_t)pool->jobs_done, "started",
        (json_int_t)pool->started, "recycles", (json_int_t)pool->recycles, "deaths",
        (json_int_t)pool->deaths, "failed_starts", (json_int_t)pool->failed_starts, "memory",
        (json_int_t)memory, "last_error", pool->last_error[0] != '\0' ? pool->last_error : NULL,
        "workers", workers);
}
