/* warm.c - one warm worker: a supervised process tree, its socket, its prints; moves in pool_moves.def.
 *
 * The order at the end: reaped ─▶ what the socket still holds is read (R62) ─▶ the tree is emptied ─▶ the jobs that it still
 * held are told, with nothing of it alive (I3).
 */
#include <stdio.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/deadline.h"
#include "base/log.h"
#include "base/random.h"
#include "base/words.h"
#include "pool/pool_int.h"

#define LINES_BURST  100.0 /* lines of one worker for the log at once … */
#define LINES_SECOND 20.0  /* … and in the long run a second */
#define LINGER_MS    1000  /* between its end of file and its exit */

static const struct {
    enum warm_state from;
    enum warm_event event;
    enum warm_state to;
} moves[] = {
#define MOVE(from, event, to) { WARM_##from, WARM_##event, WARM_##to },
#include "pool/pool_moves.def"
#undef MOVE
};

static const char *const state_names[WARM_STATES] = {
    "spawning", "greeting", "ready", "leaving", "stopping", "ending", "gone",
};
static const char *const event_names[WARM_EVENTS] = {
    "SPAWNED", "HELLO", "RETIRE", "STOP", "EXITED", "EMPTY",
};

int warm_next(enum warm_state state, enum warm_event event)
{
    for (size_t i = 0; i < ARRAY_LEN(moves); i++)
        if (moves[i].from == state && moves[i].event == event)
            return (int)moves[i].to;
    return -EPROTO;
}

const char *warm_state_name(enum warm_state state)
{
    return state_names[state];
}

static void move(struct warm *warm, enum warm_event event)
{
    int next = warm_next(warm->state, event);

    BUG_ON(next < 0);
    log_debug("pool", "pool %s: worker %" PRIu64 ": %s -%s-> %s", warm->options.name, warm->number,
              state_names[warm->state], event_names[event], state_names[next]);
    warm->state = (enum warm_state)next;
}

/* ---- what it says ---- */

static bool take_token(struct warm *warm)
{
    int64_t now = clock_mono_ms();
    double filled = warm->tokens + (double)(now - warm->tokens_ms) * LINES_SECOND / 1000;

    warm->tokens = MIN(LINES_BURST, filled);
    warm->tokens_ms = now;
    if (warm->tokens < 1) {
        warm->left_out++;
        return false;
    }
    warm->tokens -= 1;
    return true;
}

/* The ids of the jobs that it holds: a line that it prints may be of any of them. */
static const char *held_ids(const struct warm *warm, char *text, size_t size, int64_t *ret_attempt)
{
    size_t len = 0;

    *ret_attempt = -1;
    text[0] = '\0';
    LIST_FOREACH(job, &warm->held, struct pool_job, node) {
        int n = snprintf(text + len, size - len, "%s%s", len > 0 ? "," : "", job->task->id);
        if (n < 0 || (size_t)n >= size - len)
            break;
        len += (size_t)n;
        if (warm->held_count == 1)
            *ret_attempt = job->task->attempt;
    }
    return len > 0 ? text : NULL;
}

static void say(struct warm *warm, const char *kind, const char *line)
{
    char ids[256];
    int64_t attempt;

    if (!take_token(warm))
        return;
    const char *job = held_ids(warm, ids, sizeof ids, &attempt);
    if (warm->left_out > 0)
        log_event(LOG_WARN, job, attempt,
                  "pool %s: worker %d: %" PRIu64 " lines were left out, it writes too many",
                  warm->options.name, (int)warm->pid, warm->left_out);
    warm->left_out = 0;
    log_event(LOG_INFO, job, attempt, "pool %s: worker %d: %s: %s", warm->options.name,
              (int)warm->pid, kind, line);
}

static void on_out_line(void *arg, const char *line)
{
    say(arg, "stdout", line);
}

static void on_err_line(void *arg, const char *line)
{
    say(arg, "stderr", line);
}

/* ---- going ---- */

static void on_impatient(uv_timer_t *timer)
{
    struct warm *warm = timer->data;
    OBJ_CHECK(warm, WARM_MAGIC);

    warm_stop(warm, warm->expected ? CAUSE_SHUTDOWN : CAUSE_WORKER_DIED,
              warm->options.kill_after_ms);
}

static void wait_at_most(struct warm *warm, int64_t ms)
{
    deadline_start(&warm->timer, on_impatient, ms);
}

void warm_stop(struct warm *warm, enum cause cause, int64_t grace_ms)
{
    if (warm->state == WARM_ENDING || warm->state == WARM_GONE)
        return;
    if (warm->state != WARM_STOPPING)
        move(warm, WARM_STOP);
    child_stop(warm->child, cause, grace_ms);
}

void warm_retire(struct warm *warm, const char *reason)
{
    warm->expected = warm->spent = true;
    if (warm->state == WARM_READY) {
        move(warm, WARM_RETIRE);
        peer_bye(warm->peer, reason);
        if (warm->held_count == 0)
            wait_at_most(warm, warm->options.kill_after_ms);
    } else if (warm->state == WARM_SPAWNING || warm->state == WARM_GREETING) {
        warm_stop(warm, CAUSE_SHUTDOWN, warm->options.kill_after_ms);
    }
}

/* ---- jobs: the peer's events, with bookkeeping in between ---- */

static void release(struct warm *warm, struct pool_job *job)
{
    peer_job_drop(&job->peer);
    list_remove(&job->node);
    job->warm = NULL;
    warm->pool->held_count--;
    if (--warm->held_count > 0)
        return;
    warm->idle_since_ms = clock_mono_ms();
    if (warm->state == WARM_LEAVING)
        wait_at_most(warm, warm->options.kill_after_ms);
}

static void on_chunk(void *arg, bool is_stderr, const void *bytes, size_t len)
{
    struct pool_job *job = arg;
    job->events->on_chunk(job->arg, is_stderr, bytes, len);
}

static void on_chunk_end(void *arg, bool is_stderr)
{
    struct pool_job *job = arg;
    job->events->on_chunk_end(job->arg, is_stderr);
}

static void on_room(void *arg)
{
    struct pool_job *job = arg;
    job->events->on_room(job->arg);
}

static void on_progress(void *arg, json_t *value)
{
    struct pool_job *job = arg;
    job->events->on_progress(job->arg, value);
}

static void on_job_log(void *arg, const char *level, const char *text)
{
    struct pool_job *job = arg;

    (void)level;
    if (take_token(job->warm))
        job->events->on_log(job->arg, text);
}

static void on_done(void *arg, json_t *result, json_t *error)
{
    struct pool_job *job = arg;
    struct warm *warm = job->warm;
    struct pool *pool = warm->pool;

    warm->jobs_done++;
    pool->jobs_done++;
    pool->failures = 0;
    release(warm, job);
    job->events->on_done(job->arg, result, error);
    pool_serve(pool);
}

static const struct peer_job_events job_events = { .on_chunk = on_chunk,
                                                   .on_chunk_end = on_chunk_end,
                                                   .on_room = on_room,
                                                   .on_progress = on_progress,
                                                   .on_log = on_job_log,
                                                   .on_done = on_done };

bool warm_has_room(const struct warm *warm)
{
    return warm->state == WARM_READY && !warm->spent && !peer_over(warm->peer) &&
           warm->held_count < peer_concurrency(warm->peer);
}

int warm_give(struct warm *warm, struct pool_job *job)
{
    int r = peer_give(warm->peer, job->task, &job->peer, &job_events, job);
    if (r < 0)
        return r;

    job->warm = warm;
    list_push_back(&warm->held, &job->node);
    warm->held_count++;
    warm->pool->held_count++;
    warm->jobs_given++;
    warm->look_void = true;
    if (warm->jobs_max > 0 && warm->jobs_given >= warm->jobs_max)
        warm->spent = true;
    job->events->on_given(job->arg, warm->pid, child_slot(warm->child),
                          child_containment(warm->child));
    return 0;
}

/* ---- the connection ---- */

static void on_hello(void *arg, const char *name, const char *sdk)
{
    struct warm *warm = arg;

    if (warm->state != WARM_GREETING)
        return;
    move(warm, WARM_HELLO);
    warm->was_ready = true;
    warm->ready_ms = warm->idle_since_ms = clock_mono_ms();
    log_debug("pool", "pool %s: worker %d is '%s' (%s)", warm->options.name, (int)warm->pid, name,
              sdk);
    warm_look(warm, true);
    pool_tend(warm->pool);
}

static void on_own_log(void *arg, const char *level, const char *text)
{
    (void)level;
    say(arg, "log", text);
}

static void on_bye(void *arg, const char *reason)
{
    struct warm *warm = arg;

    log_debug("pool", "pool %s: worker %d wants to leave: %s", warm->options.name, (int)warm->pid,
              reason);
    if (warm->state != WARM_READY)
        return;
    warm->pool->recycles++;
    warm_retire(warm, "as you asked");
    pool_tend(warm->pool);
}

static void on_peer_ended(void *arg, int result, const struct mandor_err *err)
{
    struct warm *warm = arg;

    warm->peer_result = result;
    if (result < 0)
        (void)snprintf(warm->why, sizeof warm->why, "%.199s", err->msg);
    if (warm->state == WARM_ENDING || warm->state == WARM_GONE)
        return; /* drained: its exit says the rest */
    if (result == 0) {
        wait_at_most(warm, LINGER_MS);
        return;
    }
    if (warm->state != WARM_STOPPING)
        log_warn("pool %s: worker %d is ended: %s", warm->options.name, (int)warm->pid, err->msg);
    warm_stop(warm, result == -EPROTO ? CAUSE_PROTOCOL : CAUSE_WORKER_DIED, 0);
}

/* ---- the process ---- */

static void start_peer(struct warm *warm)
{
    static const struct peer_events events = {
        .on_hello = on_hello, .on_log = on_own_log, .on_bye = on_bye, .on_ended = on_peer_ended
    };
    struct peer_options options = { .pool = warm->options.name,
                                    .concurrency = (unsigned)warm->options.concurrency,
                                    .hello_timeout_ms = warm->options.hello_timeout_ms,
                                    .ping_interval_ms = warm->options.ping_interval_ms };

    int r = peer_new(warm->pool->pools->loop, STEAL_FD(warm->socket), &options, &events, warm,
                     &warm->peer);
    if (r < 0) {
        (void)snprintf(warm->why, sizeof warm->why, "watch the worker's socket: %s", strerror(-r));
        warm_stop(warm, CAUSE_WORKER_DIED, 0);
    }
}

static void on_spawned(struct child *child, pid_t pid, const struct child_pipes *pipes, void *arg)
{
    struct warm *warm = arg;
    uv_loop_t *loop = warm->pool->pools->loop;

    warm->child = child;
    warm->pid = pid;
    words_free(STEAL(warm->envp));
    move(warm, WARM_SPAWNED);
    int r = prints_new(loop, pipes->out, on_out_line, warm, &warm->out);
    int r2 = prints_new(loop, pipes->err, on_err_line, warm, &warm->err);
    if (r < 0 || r2 < 0)
        log_warn("pool %s: what worker %d prints is lost: %s", warm->options.name, (int)pid,
                 strerror(-(r < 0 ? r : r2)));
    if (warm->state == WARM_GREETING)
        start_peer(warm);
}

static void describe_end(struct warm *warm)
{
    const struct verdict *verdict = &warm->verdict;
    const char *name = verdict->signal > 0 ? sigabbrev_np(verdict->signal) : NULL;

    if (warm->why[0] != '\0')
        return;
    if (verdict->cause == CAUSE_SPAWN)
        (void)snprintf(warm->why, sizeof warm->why, "cannot be started: %.160s", verdict->error);
    else if (verdict->cause == CAUSE_OOM)
        (void)snprintf(warm->why, sizeof warm->why, "%.190s", verdict->error);
    else if (verdict->exit_code >= 0)
        (void)snprintf(warm->why, sizeof warm->why, "exit code %d%s", verdict->exit_code,
                       warm->was_ready ? "" : ", before HELLO");
    else
        (void)snprintf(warm->why, sizeof warm->why, "killed by signal %d (SIG%s)%s",
                       verdict->signal, name != NULL ? name : "?",
                       warm->was_ready ? "" : ", before HELLO");
}

static void on_exited(struct child *child, const struct verdict *verdict, void *arg)
{
    struct warm *warm = arg;

    warm->child = child;
    warm->verdict = *verdict;
    (void)uv_timer_stop(&warm->timer);
    words_free(STEAL(warm->envp));
    move(warm, WARM_EXITED);
    if (warm->peer != NULL && !peer_over(warm->peer))
        peer_drain(warm->peer);
    describe_end(warm);
    pool_note_end(warm->pool, warm);
    child_empty(child);
    pool_tend(warm->pool); /* its successor need not wait for its descendants */
}

static void on_part_closed(void *arg)
{
    struct warm *warm = arg;
    OBJ_CHECK(warm, WARM_MAGIC);

    if (--warm->parts > 0)
        return;
    struct pool *pool = warm->pool;
    list_remove(&warm->node);
    pool->warm_count--;
    pool_options_done(&warm->options);
    OBJ_FINI(warm);
    free(warm);
    pool_tend(pool);
}

static void on_timer_closed(uv_handle_t *handle)
{
    on_part_closed(handle->data);
}

/* A look that is under way has a part of its own. */
static void close_parts(struct warm *warm)
{
    warm->parts += 1u + (warm->peer != NULL) + (warm->out != NULL) + (warm->err != NULL);
    uv_close((uv_handle_t *)&warm->timer, on_timer_closed);
    if (warm->peer != NULL)
        peer_close(warm->peer, on_part_closed, warm);
    if (warm->out != NULL)
        prints_close(warm->out, on_part_closed, warm);
    if (warm->err != NULL)
        prints_close(warm->err, on_part_closed, warm);
    if (warm->socket >= 0)
        (void)close(STEAL_FD(warm->socket));
    on_part_closed(warm);
}

/* What a job of a worker that has ended is told. */
static struct verdict verdict_for(const struct warm *warm, const struct pool_job *job)
{
    struct verdict verdict = { .cause = CAUSE_WORKER_DIED,
                               .exit_code = -1,
                               .signal = warm->verdict.signal };
    const char *name = warm->options.name;

    if (warm->killed_for_job && !job->stopped) {
        verdict.cause = CAUSE_SHUTDOWN; /* nobody's fault here: put back, not charged */
        (void)snprintf(verdict.error, sizeof verdict.error,
                       "worker %d of pool '%.60s' was ended because of another job", (int)warm->pid,
                       name);
        return verdict;
    }
    if (warm->peer_result == -EPROTO)
        verdict.cause = CAUSE_PROTOCOL;
    else if (warm->verdict.cause == CAUSE_OOM)
        verdict.cause = CAUSE_OOM;
    verdict.forced = job->stopped;
    (void)snprintf(verdict.error, sizeof verdict.error, "worker %d of pool '%.40s' ended: %.150s",
                   (int)warm->pid, name, warm->why);
    return verdict;
}

static void lose(struct warm *warm, struct pool_job *job)
{
    bool unread = !job->stopped && !job->cancelled && warm->peer != NULL &&
                  peer_job_unread(warm->peer, &job->peer);

    release(warm, job);
    if (unread) {
        pool_give_again(warm->pool, job);
        return;
    }
    struct verdict verdict = verdict_for(warm, job);
    job->events->on_lost(job->arg, &verdict);
}

static void on_empty(struct child *child, void *arg)
{
    struct warm *warm = arg;

    if (warm->out != NULL)
        prints_finish(warm->out);
    if (warm->err != NULL)
        prints_finish(warm->err);
    move(warm, WARM_EMPTY);
    while (!list_empty(&warm->held))
        lose(warm, LIST_ENTRY(warm->held.next, struct pool_job, node));
    child_close(child);
    close_parts(warm);
}

/* ---- the look from outside ---- */

static void run_look(struct work *work)
{
    struct warm *warm = CONTAINER_OF(work, struct warm, look);

    warm->look_result =
        inspect(warm->pid, warm->look_deep, warm->have_base ? &warm->base : NULL, &warm->now);
}

static void judge_look(struct warm *warm)
{
    if (warm->options.max_memory_bytes > 0 &&
        warm->now.memory_bytes > warm->options.max_memory_bytes && warm->due == NULL)
        warm->due = "max_memory";
    if (!warm->look_deep || warm->look_void)
        return;
    if (!warm->have_base) {
        warm->base = warm->now;
        warm->have_base = true;
    }
    if (warm->now.drift[0] == '\0')
        return;
    if (!warm->drift_told)
        log_warn("pool %s: worker %d is not as it was: %s", warm->options.name, (int)warm->pid,
                 warm->now.drift);
    warm->drift_told = true;
    if (str_eq(warm->options.contamination, "recycle") && warm->due == NULL)
        warm->due = "contamination";
}

static void after_look(struct work *work)
{
    struct warm *warm = CONTAINER_OF(work, struct warm, look);
    OBJ_CHECK(warm, WARM_MAGIC);

    warm->looking = false;
    if (warm->look_result == 0 && warm->state == WARM_READY) {
        judge_look(warm);
        if (warm->due != NULL)
            pool_tend(warm->pool);
    }
    on_part_closed(warm);
}

void warm_look(struct warm *warm, bool deep)
{
    if (warm->looking || warm->pid == 0)
        return;
    warm->looking = true;
    warm->look_deep = deep && !str_eq(warm->options.contamination, "off");
    warm->look_void = warm->held_count > 0;
    warm->looked_ms = clock_mono_ms();
    if (warm->look_deep)
        warm->looked_jobs = warm->jobs_given;
    warm->parts++;
    work_submit(warm->pool->pools->loop, &warm->look, WORK_CPU, run_look, after_look);
}

json_t *warm_json(const struct warm *warm)
{
    json_t *jobs = json_array();
    /* what a pool thread writes now is not ours to read */
    const struct inspection *seen = warm->looking ? &warm->base : &warm->now;

    LIST_FOREACH(job, &warm->held, struct pool_job, node)
        (void)json_array_append_new(jobs, json_string(job->task->id));
    bool runs = warm->child != NULL && warm->pid > 0;
    return json_pack("{s:i, s:s, s:o, s:I, s:I, s:I, s:I, s:s?, s:s?, s:s?, s:o?}", "pid",
                     (int)warm->pid, "state", state_names[warm->state], "held", jobs, "jobs",
                     (json_int_t)warm->jobs_done, "memory", (json_int_t)seen->memory_bytes,
                     "processes", (json_int_t)seen->processes + runs, "age_ms",
                     (json_int_t)(clock_mono_ms() - warm->started_ms), "due", warm->due, "drift",
                     seen->drift[0] != '\0' ? seen->drift : NULL, "containment",
                     runs ? spec_containment_name(child_containment(warm->child)) : NULL,
                     "limits_enforced", runs ? child_limits_enforced(warm->child) : NULL);
}

/* ---- the beginning ---- */

static bool overridden(char *const *own, const char *entry)
{
    for (; own != NULL && *own != NULL; own++)
        if (strncmp(entry, *own, strcspn(entry, "=") + 1) == 0)
            return true;
    return false;
}

/* What mandor passes on, the pool's own over it, and the pool's name. */
static int make_env(struct warm *warm)
{
    char *const *passed = warm->pool->pools->env_pass, *const *own = warm->options.env;
    size_t count = 2, used = 0;

    for (char *const *p = passed; *p != NULL; p++)
        count++;
    for (char *const *p = own; p != NULL && *p != NULL; p++)
        count++;
    warm->envp = calloc(count, sizeof *warm->envp);
    if (warm->envp == NULL)
        return -ENOMEM;
    for (; *passed != NULL; passed++)
        if (!overridden(own, *passed) && (warm->envp[used++] = strdup(*passed)) == NULL)
            return -ENOMEM;
    for (; own != NULL && *own != NULL; own++)
        if ((warm->envp[used++] = strdup(*own)) == NULL)
            return -ENOMEM;
    if (asprintf(&warm->envp[used], "MANDOR_POOL=%s", warm->options.name) < 0) {
        warm->envp[used] = NULL;
        return -ENOMEM;
    }
    return 0;
}

static enum spec_containment containment_of(const char *name)
{
    for (int i = CONTAIN_AUTO; name != NULL && i <= CONTAIN_STRICT; i++)
        if (str_eq(name, spec_containment_name((enum spec_containment)i)))
            return (enum spec_containment)i;
    return CONTAIN_AUTO;
}

static int launch(struct warm *warm, int theirs)
{
    const char *policy = warm->options.limits_policy;
    static const struct child_events events = { .on_spawned = on_spawned,
                                                .on_exited = on_exited,
                                                .on_empty = on_empty };
    char label[128];

    (void)snprintf(label, sizeof label, "pool.%.80s.%" PRIu64, warm->options.name, warm->number);
    for (char *p = label; *p != '\0'; p++)
        if (*p == '/' || (unsigned char)*p < ' ')
            *p = '_';
    struct child_launch launch = { .label = label,
                                   .argv = warm->options.command,
                                   .envp = warm->envp,
                                   .cwd = warm->options.cwd,
                                   .user = warm->options.user,
                                   .no_new_privs = true,
                                   .channel_fd = theirs,
                                   .stdout_fd = -1,
                                   .stderr_fd = -1,
                                   .limits = warm->options.limits,
                                   .limits_policy = policy != NULL && str_eq(policy, "best_effort")
                                                        ? LIMITS_BEST_EFFORT
                                                        : LIMITS_STRICT,
                                   .containment = containment_of(warm->options.containment) };

    return child_start(warm->pool->pools->nursery, &launch, &events, warm, &warm->child);
}

/* Spread what would else come for all of them at once (R63). */
static void draw_limits(struct warm *warm)
{
    const struct pool_options *options = &warm->options;

    warm->jobs_max = options->max_jobs;
    if (options->max_jobs > 3)
        warm->jobs_max -=
            (int64_t)(random_01(&warm->pool->pools->random) * (double)(options->max_jobs / 4));
    warm->age_max_ms = options->max_age_ms - (int64_t)(random_01(&warm->pool->pools->random) *
                                                       (double)options->max_age_ms / 8);
}

static void discard(struct warm *warm)
{
    if (warm->socket >= 0)
        (void)close(warm->socket);
    words_free(STEAL(warm->envp));
    pool_options_done(&warm->options);
    free(warm);
}

/* Twice as much on the way as by default, as far as net.core.wmem_max allows (socket(7): the kernel doubles the number): half the
 * switches between worker and mandor. */
static void widen(int socket)
{
    int bytes = (int)PEER_WINDOW;
    (void)setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
}

int warm_start(struct pool *pool)
{
    int pair[2] = { -1, -1 };
    struct warm *warm = calloc(1, sizeof *warm);

    if (warm == NULL)
        return -ENOMEM;
    int r = socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0 ? -errno : 0;
    SCOPED_FD theirs = pair[1];
    widen(pair[0]);
    widen(pair[1]);
    *warm = (struct warm){ .magic = WARM_MAGIC,
                           .pool = pool,
                           .number = ++pool->next_number,
                           .version = pool->version,
                           .parts = 1, /* until close_parts() */
                           .socket = pair[0],
                           .tokens = LINES_BURST,
                           .started_ms = clock_mono_ms() };
    warm->tokens_ms = warm->started_ms;
    list_init(&warm->held);
    if (r == 0)
        r = pool_options_copy(&pool->options, &warm->options);
    if (r == 0)
        r = make_env(warm);
    if (r == 0)
        r = launch(warm, theirs);
    if (r < 0) {
        discard(warm);
        return r;
    }
    draw_limits(warm);
    (void)uv_timer_init(pool->pools->loop, &warm->timer);
    warm->timer.data = warm;
    list_push_back(&pool->warms, &warm->node);
    pool->warm_count++;
    pool->started++;
    return 0;
}
