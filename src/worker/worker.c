/* worker.c - contract in worker.h: wires the modules together, and ends them in order. */
#include "worker/worker.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/resource.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/deadline.h"
#include "base/errout.h"
#include "base/file.h"
#include "base/log.h"
#include "base/metrics.h"
#include "base/random.h"
#include "base/units.h"
#include "base/words.h"
#include "exec/env.h"
#include "os/notify.h"
#include "sink/sink.h"
#include "worker/attempt.h"
#include "worker/leftovers.h"
#include "worker/live_server.h"
#include "worker/progress.h"
#include "worker/scheduler.h"

#define FLUSH_MS       1000 /* at the end: for who reads our log slowly */
#define LOOP_NICE      (-10)
#define TICK_MS        1000
#define COMPLAIN_MS    60000
#define PHASE_DELAY_MS 200 /* shorter attempts cost the broker no extra write */
/* A job leased ahead waits this long for a slot here, then anybody may have it. */
#define GIVE_BACK_MS   1000
#define LAST_GRACE_MS  10000 /* after everything was told to end: for settling */
#define UNSETTLED_MS   10000 /* at a stop: for a broker that is to take what has ended */
#define UNHEARD_MS     3000  /* the same when it is only to be told that we leave */

/* ---- small services ---- */

/* How long the callbacks of one loop turn took: nothing that is due waits longer than that. */
static void on_turn(uv_prepare_t *handle)
{
    struct worker *worker = handle->data;
    uint64_t now = uv_hrtime(), idle = uv_metrics_idle_time(&worker->loop);

    if (worker->lag_last_ns != 0) {
        uint64_t busy = (now - worker->lag_last_ns) - (idle - worker->lag_idle_ns);
        metric_observe(METRIC_loop_lag_us, (int64_t)(busy / 1000));
    }
    worker->lag_last_ns = now;
    worker->lag_idle_ns = idle;
}

/* ---- phases ---- */

static void on_phase_noted(struct broker_req *req)
{
    struct attempt *attempt = req->data;

    attempt->phase_busy = false;
    if (req->status < 0)
        log_debug("attempt", "job %s: phase was not noted: %s", attempt->lease.id, req->err.msg);
    attempt_phase_done(attempt);
}

static void note_phase(struct worker *worker, struct attempt *attempt)
{
    attempt->phase_noted = attempt->phase;
    attempt->phase_busy = true;
    attempt->phase_req =
        (struct broker_req){ .op = BROKER_PHASE, .done = on_phase_noted, .data = attempt };
    attempt->phase_req.phase.id = attempt->lease.id;
    attempt->phase_req.phase.attempt = attempt->lease.attempt;
    attempt->phase_req.phase.phase = attempt->phase;
    attempt->phase_req.phase.containment = attempt->slot[0] != '\0' ? attempt->slot : NULL;
    broker_submit(attempt->source->broker, &attempt->phase_req);
}

static void on_phase_timer(uv_timer_t *timer)
{
    struct worker *worker = timer->data;

    LIST_FOREACH(attempt, &worker->attempts, struct attempt, node)
        if (attempt->state == ATTEMPT_RUNNING && !attempt->phase_busy &&
            attempt->phase != attempt->phase_noted)
            note_phase(worker, attempt);
}

void worker_note_phases(struct worker *worker)
{
    if (!uv_is_active((uv_handle_t *)&worker->phase_timer))
        (void)uv_timer_start(&worker->phase_timer, on_phase_timer, PHASE_DELAY_MS, 0);
}

/* ---- recovery ---- */

/* A worker that died before it could say what it made, made it where we did: our own text with its name.  NULL: no memory. */
static char *sibling_base(const struct worker *worker, const char *name, int name_len)
{
    SCOPED_BUF text = { 0 };
    const char *at = nursery_base_text(worker->nursery), *own = worker->setup.name;
    int r = 0;

    for (const char *hit; r == 0 && (hit = strstr(at, own)) != NULL; at = hit + strlen(own)) {
        r = buf_add(&text, at, (size_t)(hit - at));
        if (r == 0)
            r = buf_add(&text, name, (size_t)name_len);
    }
    return r < 0 || buf_addf(&text, "%s", at) < 0 ? NULL : buf_steal(&text);
}

/* What the broker calls on its own thread for a worker that is dead: text is what REGISTER said, "<name>\n<base>". */
/* Usually gone already. */
static void remove_sockets(const struct worker *worker, const char *name, int name_len)
{
    char path[4096];

    for (size_t i = 0; i < worker->source_count; i++) {
        const char *dir = worker->sources[i].data_dir;
        (void)snprintf(path, sizeof path, "%s/run/%.*s.live", dir, name_len, name);
        (void)unlink(path);
        (void)snprintf(path, sizeof path, "%s/run/%.*s.sock", dir, name_len, name);
        (void)unlink(path);
    }
}

int worker_empty_dead(const char *text, void *arg)
{
    struct worker *worker = arg;
    const char *base = strchr(text, '\n');
    char path[4096];
    struct mandor_err err;

    if (base == NULL)
        return 0;
    int name_len = (int)(base - text);
    SCOPED_FREE char *guess = base[1] == '\0' ? sibling_base(worker, text, name_len) : NULL;
    if (base[1] == '\0' && guess == NULL)
        return -EAGAIN;
    int r = nursery_empty_dead(guess != NULL ? guess : base + 1, &err);
    if (r == -EAGAIN) {
        if (clock_mono_ms() >= worker->complain_at_ms) {
            log_warn("the jobs of dead worker '%.*s' wait until nothing of it is alive: %s",
                     name_len, text, err.msg);
            worker->complain_at_ms = clock_mono_ms() + COMPLAIN_MS;
        }
        return r;
    }
    if (r < 0) /* nothing of it is alive, but something stays on disk */
        log_warn("clean up after worker '%.*s': %s", name_len, text, err.msg);
    (void)snprintf(path, sizeof path, "%s/journal/%.*s", worker->setup.data_dir, name_len, text);
    leftovers_take(worker, path);
    if (sink_sweep(path, &err) < 0 && err.code != -ENOENT)
        log_warn("sweep after worker '%.*s': %s", name_len, text, err.msg);
    remove_sockets(worker, text, name_len);
    log_warn("worker '%.*s' had died: what it left was ended and removed", name_len, text);
    return 0;
}

void worker_recover(struct worker *worker)
{
    for (size_t i = 0; i < worker->source_count; i++)
        source_recover(&worker->sources[i]);
}

struct attempt *worker_attempt(const struct worker *worker, const char *data_dir, const char *id)
{
    struct attempt *attempt = NULL;

    for (size_t i = 0; i < worker->source_count && attempt == NULL; i++)
        if (data_dir == NULL || str_eq(worker->sources[i].data_dir, data_dir))
            attempt = hash_gets(worker->sources[i].by_id, id);
    return attempt;
}

/* ---- stop ---- */

static void stop_all(struct worker *worker, int64_t grace_ms)
{
    LIST_FOREACH(attempt, &worker->attempts, struct attempt, node)
        attempt_stop(attempt, CAUSE_SHUTDOWN, grace_ms, "the worker was told to stop");
}

static int64_t longest_grace(struct worker *worker)
{
    int64_t longest = 0;

    LIST_FOREACH(attempt, &worker->attempts, struct attempt, node)
        if (attempt->spec != NULL)
            longest = MAX(longest, attempt->spec->kill_after_ms);
    return longest;
}

/* Nothing of it is alive, or ever was, and a server is to say what becomes of it. */
static bool waits(const struct attempt *attempt)
{
    bool asked = attempt->req_busy ||
                 (attempt->timer_open && uv_is_active((const uv_handle_t *)&attempt->timer));

    return attempt->source->shared &&
           (attempt->state == ATTEMPT_LEASED || (asked && attempt->state != ATTEMPT_RUNNING));
}

static void tell_left(const struct attempt *attempt)
{
    char text[VERDICT_TEXT_SIZE];

    if (!waits(attempt))
        log_event(LOG_ERROR, attempt->lease.id, attempt->lease.attempt,
                  "left behind at shutdown: %s, phase %s", attempt_state_name(attempt->state),
                  attempt->phase != NULL ? attempt->phase : "none");
    else if (attempt->state == ATTEMPT_COMMITTING || attempt->state == ATTEMPT_SETTLING)
        log_event(
            LOG_ERROR, attempt->lease.id, attempt->lease.attempt,
            "not settled (%s): broker '%s' does not answer; when the lease is over the job is "
            "taken over",
            verdict_text(&attempt->verdict, text), attempt->source->name);
    else
        log_event(LOG_WARN, attempt->lease.id, attempt->lease.attempt,
                  "not started, and not given back: broker '%s' does not answer",
                  attempt->source->name);
}

/* Everything was told to end and the time for that is over: say what is left; the guard ends it. */
static void give_up(struct worker *worker)
{
    LIST_FOREACH(attempt, &worker->attempts, struct attempt, node)
        tell_left(attempt);
    if (list_empty(&worker->attempts))
        log_warn("leaving without a word to the brokers, which do not answer");
    errout_flush(FLUSH_MS);
    _exit(list_empty(&worker->attempts) ? 0 : 125);
}

/* Is nothing of any job alive, so that only brokers hold us up? */
static bool is_held_up(const struct worker *worker)
{
    bool servers = false;

    for (size_t i = 0; i < worker->source_count; i++)
        servers |= worker->sources[i].shared;
    LIST_FOREACH(attempt, &worker->attempts, struct attempt, node)
        if (!waits(attempt))
            return false;
    return servers;
}

/* Results that a broker does not take are not waited for as long as jobs are: their leases end by themselves (I8). */
static void check_held_up(struct worker *worker)
{
    int64_t limit_ms = list_empty(&worker->attempts) ? UNHEARD_MS : UNSETTLED_MS;

    if (!worker->stopping || !is_held_up(worker))
        worker->held_up_ms = 0;
    else if (worker->held_up_ms == 0)
        worker->held_up_ms = clock_mono_ms();
    else if (clock_mono_ms() - worker->held_up_ms >= limit_ms)
        give_up(worker);
}

static void on_stop_timer(uv_timer_t *timer)
{
    struct worker *worker = timer->data;

    if (worker->terminating) {
        give_up(worker);
        return;
    }
    worker_stop(worker);
}

/* The graces of our jobs are within the service manager's: it is asked to wait as long as they may take together (sd_notify(3)). */
static void ask_for_time(int64_t ms)
{
    char text[96];

    (void)snprintf(text, sizeof text, "STOPPING=1\nEXTEND_TIMEOUT_USEC=%" PRId64,
                   MIN(ms, INT64_MAX / 1000) * 1000);
    (void)notify_send(text);
}

static const char *plural(size_t count)
{
    return count == 1 ? "" : "s";
}

/* The first time: what runs may end by itself. */
static void begin_stop(struct worker *worker, size_t active)
{
    char limit[UNITS_TEXT_SIZE];

    worker->stopping = true;
    ask_for_time(worker->config->shutdown_timeout_ms + longest_grace(worker) + LAST_GRACE_MS);
    (void)units_print_duration(worker->config->shutdown_timeout_ms, limit);
    if (active == 0)
        log_info("stopping");
    else
        log_info("stopping: %zu job%s may end within %s", active, plural(active), limit);
    if (active > 0)
        progress_say(worker->progress,
                     "Stopping: %zu job%s may end within %s; Ctrl-C again stops %s now.", active,
                     plural(active), limit, active == 1 ? "it" : "them");
    scheduler_give_back(worker->scheduler, NULL, 0);
    deadline_start(&worker->stop_timer, on_stop_timer, worker->config->shutdown_timeout_ms);
}

/* The second time: what runs is asked to end, and put back. */
static void terminate(struct worker *worker, size_t active)
{
    worker->terminating = true;
    ask_for_time(longest_grace(worker) + LAST_GRACE_MS);
    log_info("stopping now: %zu job%s put back", active, active == 1 ? " is" : "s are");
    deadline_start(&worker->stop_timer, on_stop_timer, longest_grace(worker) + LAST_GRACE_MS);
    stop_all(worker, -1);
    if (worker->held_up_ms != 0 && is_held_up(worker))
        give_up(worker);
}

void worker_stop(struct worker *worker)
{
    size_t active = scheduler_active(worker->scheduler);

    if (!worker->stopping)
        begin_stop(worker, active);
    else if (!worker->terminating)
        terminate(worker, active);
    else
        stop_all(worker, 0);
    worker_check_done(worker);
}

/* ---- once a second ---- */

static void on_tick(uv_timer_t *timer)
{
    struct worker *worker = timer->data;

    for (size_t i = 0; i < worker->source_count; i++) {
        struct source *source = &worker->sources[i];
        source_register(source);
        if (clock_boot_ms() - source->renewed_boot_ms >= worker->config->lease_ms / 3)
            renew_ask(source);
        renew_check_expiry(source);
    }
    worker_recover(worker);
    scheduler_give_back(worker->scheduler, NULL, GIVE_BACK_MS);
    if (!worker->stopping)
        scheduler_wake(worker->scheduler, NULL);
    worker_check_done(worker);
    check_held_up(worker);
}

/* ---- the end, in order: no attempt is left ---- */

static void close_rest(struct worker *worker)
{
    worker->over = true;
    scheduler_close(worker->scheduler);
    live_server_close(worker->live);
    progress_close(worker->progress);
    filter_pool_close(worker->filters);
    uv_close((uv_handle_t *)&worker->tick, NULL);
    uv_close((uv_handle_t *)&worker->phase_timer, NULL);
    uv_close((uv_handle_t *)&worker->stop_timer, NULL);
    uv_close((uv_handle_t *)&worker->lag, NULL);
    nursery_close(worker->nursery, NULL, NULL);
    for (size_t i = 0; i < worker->source_count; i++)
        broker_close(worker->sources[i].broker, NULL, NULL);
}

/* Every entry is gone with its attempt; what is not, a successor's sweep needs. */
static void remove_journal(const struct worker *worker)
{
    char path[4096];

    (void)snprintf(path, sizeof path, "%s/journal/%s", worker->setup.data_dir, worker->setup.name);
    (void)rmdir(path);
}

static void on_unregistered(struct broker_req *req)
{
    struct source *source = req->data;
    struct worker *worker = source->worker;
    bool all = true;

    if (req->status < 0)
        log_warn("the next worker will clean up: %s", req->err.msg);
    source->registered = false;
    for (size_t i = 0; i < worker->source_count; i++)
        all &= !worker->sources[i].registered;
    if (!all)
        return;
    remove_journal(worker);
    close_rest(worker);
}

static void on_pythons_closed(void *arg)
{
    struct worker *worker = arg;

    for (size_t i = 0; i < worker->source_count; i++) {
        struct source *source = &worker->sources[i];
        if (!source->registered)
            continue;
        source->unregister_req =
            (struct broker_req){ .op = BROKER_UNREGISTER, .done = on_unregistered, .data = source };
        broker_submit(source->broker, &source->unregister_req);
    }
}

/* Are all brokers done with what they were asked that may bring work? */
static bool is_quiet(const struct worker *worker)
{
    for (size_t i = 0; i < worker->source_count; i++)
        if (worker->sources[i].recovering || worker->sources[i].renewing ||
            worker->sources[i].registering)
            return false;
    return worker->reload == NULL && !scheduler_asking(worker->scheduler) &&
           list_empty(&worker->attempts);
}

static void on_pools_closed(void *arg)
{
    struct worker *worker = arg;

    pythons_close(worker->pythons, on_pythons_closed, worker);
    worker->pythons = NULL;
}

void worker_check_done(struct worker *worker)
{
    if (worker->closing || !worker->registered || !is_quiet(worker))
        return;
    if (!worker->stopping && !(worker->setup.drain && scheduler_drained(worker->scheduler)))
        return;

    if (!worker->stopping)
        scheduler_say_if_idle(worker->scheduler);
    worker->closing = true;
    /* While we are registered: what they hold can be found. */
    pools_close(worker->pools, on_pools_closed, worker);
    worker->pools = NULL;
}

/* ---- the beginning ---- */

static void on_guard_lost(void *arg)
{
    (void)arg;
    log_error("the guard process has died: everything was ended, leaving");
    errout_flush(FLUSH_MS);
    _exit(125);
}

/* What must be emptied when this worker is dead: "<name>\n<base>". */
char *worker_base_text(const struct worker *worker)
{
    SCOPED_BUF base = { 0 };

    if (buf_addf(&base, "%s\n%s", worker->setup.name, nursery_base_text(worker->nursery)) < 0)
        return NULL;
    return buf_steal(&base);
}

/* A worker that dies before it is registered is found by its lock file, which says the same (broker/data_dir.c).  Without it
 * a few empty directories stay. */
static void note_base(const struct worker *worker)
{
    SCOPED_FREE char *text = worker_base_text(worker);
    SCOPED_FD fd = open(worker->setup.lock_path, O_WRONLY | O_CLOEXEC | O_NOFOLLOW);

    if (text == NULL || fd < 0 || file_write_all(fd, text, strlen(text)) < 0)
        log_debug("attempt", "write '%s': %s, ignoring", worker->setup.lock_path, strerror(errno));
}

static int start_parts(struct worker *worker, struct mandor_err *err)
{
    const struct worker_setup *setup = &worker->setup;
    char scratch[4096];
    int r = sources_open(worker, err);

    if (r < 0)
        return r;
    (void)snprintf(scratch, sizeof scratch, "%s/scratch", setup->data_dir);
    struct nursery_options options = {
        .name = setup->name,
        .scratch_dir = scratch,
        .adopt_orphans = true,
        .guard_fd = setup->guard_fd,
        .on_guard_lost = on_guard_lost,
        .arg = worker,
    };
    if ((r = nursery_new(&worker->loop, &options, &worker->nursery, err)) < 0)
        return r;
    note_base(worker);
    if ((r = filter_pool_new(&worker->loop, (size_t)worker->config->buffer_max_bytes,
                             &worker->filters)) < 0 ||
        (r = env_passed(worker->config->env_pass, &worker->env_pass)) < 0 ||
        (r = pools_new(&worker->loop, worker->nursery, worker->env_pass, &worker->pools)) < 0 ||
        (r = pools_configure(worker->pools, worker->config->pools, worker->config->pool_count)) <
            0 ||
        (r = pythons_new(&worker->loop, worker->nursery, &worker->pythons)) < 0 ||
        (r = pythons_configure(worker->pythons, &worker->config->python)) < 0 ||
        (r = scheduler_new(worker, &worker->scheduler)) < 0 || (r = signals_start(worker)) < 0)
        return err_set(err, r, FAULT_HOST, "start worker");
    worker->env = (struct executor_env){ .loop = &worker->loop,
                                         .nursery = worker->nursery,
                                         .filters = worker->filters,
                                         .pools = worker->pools,
                                         .pythons = worker->pythons,
                                         .env_pass = worker->env_pass };
    worker->progress = progress_new(worker);
    if ((r = live_server_new(worker, &worker->live, err)) < 0)
        return r;
    return sources_listen(worker, err);
}

static void init_handles(struct worker *worker)
{
    (void)uv_timer_init(&worker->loop, &worker->tick);
    (void)uv_timer_init(&worker->loop, &worker->phase_timer);
    (void)uv_timer_init(&worker->loop, &worker->stop_timer);
    (void)uv_prepare_init(&worker->loop, &worker->lag);
    worker->tick.data = worker->phase_timer.data = worker->stop_timer.data = worker->lag.data =
        worker;
    (void)uv_prepare_start(&worker->lag, on_turn);
    uv_unref((uv_handle_t *)&worker->lag);
}

static void announce(struct worker *worker)
{
    const struct contain_host *host = nursery_host(worker->nursery);

    SCOPED_BUF brokers = { 0 };

    for (size_t i = 0; i < worker->source_count; i++)
        if (buf_addf(&brokers, "%s%s", i > 0 ? ", " : "", worker->sources[i].name) < 0)
            break;
    log_info("worker %s: %" PRId64 " at a time, containment %s, broker %s", worker->setup.name,
             scheduler_concurrency(worker->scheduler), spec_containment_name(host->automatic),
             brokers.data != NULL ? brokers.data : "?");
    (void)notify_send("READY=1");
}

static void no_work(uv_work_t *req)
{
    (void)req;
}

static void no_work_done(uv_work_t *req, int status)
{
    (void)status;
    free(req);
}

/* A deadline waits for nobody's turn on a machine that is full of jobs (I6): the loop thread, and it alone, goes before them where that is
 * allowed (root, RLIMIT_NICE).  Niceness is a thread's own on Linux, setpriority(2), and inherited: by now every other
 * thread is there, the spawner, whose children the jobs are, above all; the pool's threads come with its first piece of work. */
static void hurry(struct worker *worker)
{
    uv_work_t *first = calloc(1, sizeof *first);

    if (first == NULL)
        return;
    if (uv_queue_work(&worker->loop, first, no_work, no_work_done) < 0) {
        free(first);
        return;
    }
    (void)setpriority(PRIO_PROCESS, (id_t)gettid(), LOOP_NICE);
}

static void worker_free(struct worker *worker)
{
    worker->scheduler = scheduler_free(worker->scheduler);
    worker->progress = progress_free(worker->progress);
    worker->live = live_server_free(worker->live);
    for (size_t i = 0; i < worker->source_count; i++)
        worker->sources[i].by_id = hash_free(worker->sources[i].by_id);
    free(worker->sources);
    words_free(worker->env_pass);
    sink_settings_set(NULL);
    config_free(worker->config);
    (void)uv_loop_close(&worker->loop);
    free(worker);
}

int worker_run(const struct worker_setup *setup)
{
    struct worker *worker = calloc(1, sizeof *worker);
    struct mandor_err err = { 0 };

    if (worker == NULL || uv_loop_init(&worker->loop) < 0) {
        log_error("start worker: out of memory");
        return 125;
    }
    (void)uv_loop_configure(&worker->loop, UV_METRICS_IDLE_TIME);
    worker->setup = *setup;
    worker->config = setup->config;
    sink_settings_set(&worker->config->sinks);
    worker->random = random_seed();
    list_init(&worker->attempts);
    init_handles(worker);

    (void)errout_start(); /* else the loop waits for whoever reads our log */
    if (start_parts(worker, &err) < 0 || sources_register(worker, &err) < 0) {
        if (!worker->stopping) /* else it waited for a broker, and need not any more */
            log_error("%s", err.msg);
        errout_flush(FLUSH_MS);
        /* Nothing runs; the guard sees to the rest. */
        _exit(worker->stopping ? 0 : err_exit_code(&err));
    }
    hurry(worker);
    announce(worker);
    (void)uv_timer_start(&worker->tick, on_tick, TICK_MS, TICK_MS);
    worker_recover(worker);
    scheduler_wake(worker->scheduler, NULL);
    (void)uv_run(&worker->loop, UV_RUN_DEFAULT);
    (void)unlink(worker->setup.lock_path); /* last: it leads to everything else that we made */
    signals_stop(worker);
    (void)uv_run(&worker->loop, UV_RUN_DEFAULT);

    worker_free(worker);
    errout_stop(FLUSH_MS);
    return 0;
}
