/* python.c - one runtime: who comes, who goes, who gets a copy.  Contract in python.h.
 *
 * python_tend() is the whole policy, called whenever something has changed: it looks at servers and copies as they are and
 * does what is missing, so no change can be forgotten.
 *
 *   the server in charge   the newest one that is ready and not being replaced
 *   due                    should be replaced (age, copies, memory, configuration): serves until its successor is ready
 */
#include <stdio.h>

#include "base/clock.h"
#include "base/log.h"
#include "python/python_int.h"

#define TICK_MS              1000
#define REFILL_MS            25
#define INSTANCES_COMING_MAX 4 /* servers that start at once */
#define BACKOFF_FIRST_MS     500
#define BACKOFF_LAST_MS      30000
#define COPY_FAILURES_MAX    3     /* in a row: the server is no good */
#define ROOM_WAIT_MS         500   /* the machine has no room for a process: until we ask again */
#define PATIENCE_MS          10000 /* from the clone of a copy to READY */
#define PATIENCE_MAX_MS      80000

/* ---- who is there ---- */

static bool is_coming(const struct server *server)
{
    return server->state == SERVER_RESOLVING || server->state == SERVER_SPAWNING ||
           server->state == SERVER_LOADING;
}

static bool is_instance(const struct python *python)
{
    return str_eq(python->runtime.isolation, "instance");
}

static struct server *in_charge(const struct python *python)
{
    struct server *found = NULL;

    LIST_FOREACH(server, &python->servers, struct server, node)
        if (server->state == SERVER_READY && (found == NULL || server->number > found->number))
            found = server;
    return found;
}

static bool any_coming(const struct python *python)
{
    LIST_FOREACH(server, &python->servers, struct server, node)
        if (is_coming(server))
            return true;
    return false;
}

static bool is_spare(const struct copy *copy)
{
    return (copy->state == COPY_SPAWNING || copy->state == COPY_WARMING ||
            copy->state == COPY_READY) &&
           copy->ask == NULL;
}

/* ---- asks ---- */

/* The copy that was made for it alone is for nobody else, whatever becomes of it: it has its bounds. */
static void let_go(struct python_ask *ask)
{
    struct copy *own = STEAL(ask->own);

    if (own == NULL)
        return;
    own->ask = NULL;
    if (own->state != COPY_ENDING && own->state != COPY_GONE)
        copy_leave(own);
}

static void refuse(struct python_ask *ask, int code, const char *why)
{
    struct verdict verdict = {
        .cause = CAUSE_SPAWN, .exit_code = -1, .stage = STAGE_LOOKUP, .spawn_errno = -code
    };

    (void)snprintf(verdict.error, sizeof verdict.error, "%.*s", (int)sizeof verdict.error - 1, why);
    list_remove(&ask->node);
    ask->waiting = false;
    ask->python->ask_count--;
    let_go(ask);
    ask->events->on_refused(ask->arg, &verdict);
}

/* permanent: as a missing program; otherwise the machine's trouble, and the jobs are put back. */
static void refuse_all(struct python *python, bool permanent, const char *why)
{
    struct list now = LIST_INIT(now);

    list_splice_back(&now, &python->asks);
    while (!list_empty(&now))
        refuse(LIST_ENTRY(now.next, struct python_ask, node), permanent ? -ENOENT : -EAGAIN, why);
}

void python_ask(struct python *python, struct python_ask *ask, const struct spec_limits *limits,
                enum spec_limits_policy policy, const struct python_ask_events *events, void *arg)
{
    OBJ_CHECK(python, PYTHON_MAGIC);
    *ask = (struct python_ask){ .python = python,
                                .waiting = true,
                                .special = limits->cpu > 0 && !is_instance(python),
                                .limits = *limits,
                                .policy = policy,
                                .events = events,
                                .arg = arg };
    list_push_back(&python->asks, &ask->node);
    python->ask_count++;
    python->wanted = true;
    python_turn(python);
}

bool python_ask_withdraw(struct python_ask *ask)
{
    if (!ask->waiting)
        return false;
    list_remove(&ask->node);
    ask->waiting = false;
    ask->python->ask_count--;
    let_go(ask);
    python_turn(ask->python);
    return true;
}

/* The copy that has waited longest: it has paid its page faults. */
static struct copy *ready_copy(struct python *python, const struct python_ask *ask)
{
    if (ask->special)
        return ask->own != NULL && ask->own->state == COPY_READY ? ask->own : NULL;
    LIST_FOREACH(copy, &python->copies, struct copy, node)
        if (copy->state == COPY_READY && copy->ask == NULL)
            return copy;
    return NULL;
}

static void serve(struct python *python)
{
    bool again;

    do { /* a callback may change the list */
        again = false;
        LIST_FOREACH(ask, &python->asks, struct python_ask, node) {
            struct copy *copy = ready_copy(python, ask);
            if (copy == NULL)
                continue;
            copy_hand(copy, ask);
            again = true;
            break;
        }
    } while (again);
}

/* ---- coming ---- */

/* Returns for how long no server is started. */
static int64_t back_off(struct python *python)
{
    int64_t delay_ms =
        MIN((int64_t)BACKOFF_FIRST_MS << MIN(python->failures, 10), (int64_t)BACKOFF_LAST_MS);

    python->failures++;
    python->next_start_ms = clock_mono_ms() + delay_ms;
    return delay_ms;
}

static void note_failure(struct python *python, const char *why, bool refused)
{
    int64_t delay_ms = back_off(python);

    python->failed_starts++;
    python->refused = refused;
    (void)snprintf(python->last_error, sizeof python->last_error, "%.*s",
                   (int)sizeof python->last_error - 1, why);
    log_warn("runtime %s: its server could not be started: %s; trying again in %" PRId64 " ms",
             python->runtime.name, why, delay_ms);
}

/* isolation instance: as many interpreters as jobs wait, and some that wait for jobs. */
static void start_instances(struct python *python)
{
    int64_t there = 0, coming = 0;

    if (!python->wanted || clock_mono_ms() < python->next_start_ms)
        return;
    LIST_FOREACH(server, &python->servers, struct server, node) {
        there += is_coming(server) || (server->state == SERVER_READY && server->asked == 0);
        coming += is_coming(server);
    }
    LIST_FOREACH(copy, &python->copies, struct copy, node)
        there += is_spare(copy);
    int64_t missing = python->runtime.spare + (int64_t)python->ask_count - there;
    for (; missing > 0 && coming < INSTANCES_COMING_MAX; missing--, coming++) {
        int r = python->failures > 0 && coming > 0 ? -EAGAIN : server_start(python);
        if (r == -EAGAIN)
            return; /* one scout at a time */
        if (r < 0)
            note_failure(python, strerror(-r), false);
    }
}

static void start_server(struct python *python)
{
    struct server *serving = in_charge(python);
    bool needed = python->wanted && (serving == NULL || serving->due != NULL);

    if (!needed || any_coming(python) || clock_mono_ms() < python->next_start_ms)
        return;
    int r = server_start(python);
    if (r < 0)
        note_failure(python, strerror(-r), false);
}

/* isolation instance: each server makes one copy, and goes. */
static void use_up_servers(struct python *python)
{
    LIST_FOREACH(server, &python->servers, struct server, node)
        if (server->state == SERVER_READY && server->asked == 0 && copy_start(server, NULL) < 0)
            return; /* the next look tries again */
}

static void start_copies(struct python *python)
{
    struct server *server = in_charge(python);
    int64_t spares = 0, plain = 0;

    if (clock_mono_ms() < python->next_copy_ms)
        return;
    if (is_instance(python)) {
        use_up_servers(python);
        return;
    }

    if (server == NULL)
        return;
    LIST_FOREACH(copy, &python->copies, struct copy, node)
        spares += is_spare(copy);
    LIST_FOREACH(ask, &python->asks, struct python_ask, node) {
        plain += !ask->special;
        if (ask->special && ask->own == NULL && copy_start(server, ask) < 0)
            break;
    }
    if (plain == 0 && spares > 0 && clock_mono_ms() < python->refill_ms)
        return;
    for (int64_t missing = python->runtime.spare + plain - spares; missing > 0; missing--)
        if (copy_start(server, NULL) < 0)
            return; /* the next look tries again */
}

/* ---- going ---- */

static void find_due(struct python *python)
{
    const struct python_runtime *runtime = &python->runtime;
    int64_t now = clock_mono_ms();

    LIST_FOREACH(server, &python->servers, struct server, node) {
        if (server->state != SERVER_READY || server->due != NULL)
            continue;
        if (server->version != python->version)
            server->due = "configuration";
        else if (server->age_max_ms > 0 && now - server->ready_ms >= server->age_max_ms)
            server->due = "max_age";
        else if (!is_instance(python) && runtime->max_forks > 0 &&
                 server->forks >= runtime->max_forks)
            server->due = "max_forks";
    }
}

/* After a burst of those that take job after job, or of jobs that were cancelled while they waited, there are more than anybody needs:
 * the last ones go. */
static void shrink(struct python *python)
{
    int64_t kept = 0, most = python->runtime.spare + 1;

    LIST_FOREACH(copy, &python->copies, struct copy, node)
        if (copy->state == COPY_READY && copy->ask == NULL && ++kept > most)
            copy_leave(copy);
}

/* Whoever is not in charge any more goes; spares of an older configuration with it. */
static void retire(struct python *python)
{
    struct server *serving = in_charge(python);

    LIST_FOREACH(server, &python->servers, struct server, node) {
        bool replaced = is_instance(python)
                            ? server->forks > 0 || server->version != python->version
                            : serving != NULL && server->number < serving->number;
        if (python->closing || (server->state == SERVER_READY && replaced)) {
            python->recycles += server->state == SERVER_READY && !python->closing;
            server_leave(server, python->closing ? "shutdown" : "replaced");
            server->expected = true; /* also where it was still looking for its wheels */
        }
    }
    LIST_FOREACH(copy, &python->copies, struct copy, node)
        if (is_spare(copy) &&
            (python->closing || (serving != NULL && copy->version != serving->version)))
            copy_leave(copy);
    if (!python->closing && python->ask_count == 0)
        shrink(python);
}

static void on_closed(uv_handle_t *handle)
{
    struct python *python = handle->data;
    OBJ_CHECK(python, PYTHON_MAGIC);

    if (--python->handles == 0)
        pythons_forget(python->pythons, python);
}

static void try_close(struct python *python)
{
    if (!python->closing || python->server_count > 0 || python->copy_count > 0 ||
        uv_is_closing((uv_handle_t *)&python->tick))
        return;
    uv_close((uv_handle_t *)&python->tick, on_closed);
    uv_close((uv_handle_t *)&python->turn, on_closed);
}

static bool in_use(const struct python *python)
{
    if (python->ask_count > 0)
        return true;
    LIST_FOREACH(copy, &python->copies, struct copy, node)
        if (copy->events != NULL)
            return true;
    return false;
}

void python_tend(struct python *python)
{
    OBJ_CHECK(python, PYTHON_MAGIC);

    if (python->leaving && !in_use(python))
        python->closing = true;
    if (!python->closing) {
        find_due(python);
        serve(python);
        if (is_instance(python))
            start_instances(python);
        else
            start_server(python);
        start_copies(python);
        if (python->refused && in_charge(python) == NULL && !any_coming(python))
            refuse_all(python, true, python->last_error);
    }
    retire(python);
    try_close(python);
}

static void on_turn(uv_idle_t *turn)
{
    struct python *python = turn->data;
    OBJ_CHECK(python, PYTHON_MAGIC);

    (void)uv_idle_stop(turn);
    python_tend(python);
}

void python_turn(struct python *python)
{
    if (!uv_is_closing((uv_handle_t *)&python->turn))
        (void)uv_idle_start(&python->turn, on_turn);
}

static void on_tick(uv_timer_t *tick)
{
    struct python *python = tick->data;
    OBJ_CHECK(python, PYTHON_MAGIC);

    LIST_FOREACH(server, &python->servers, struct server, node)
        server_look(server);
    python_tend(python);
}

/* A job that has just got its copy does not share the processors with the making of the next one, while there are others. */
void python_refill_later(struct python *python)
{
    python->refill_ms = clock_mono_ms() + REFILL_MS;
    (void)uv_timer_start(&python->tick, on_tick, REFILL_MS, TICK_MS);
}

/* ---- ends ---- */

/* Its copies are ended with it: whatever killed it may have reached into them. */
static void end_copies(struct python *python, struct server *server)
{
    char why[240];

    (void)snprintf(why, sizeof why, "the fork server of runtime '%.60s' ended: %.140s",
                   python->runtime.name, server->why);
    LIST_FOREACH(copy, &python->copies, struct copy, node)
        if (copy->server == server)
            copy_stop(copy, CAUSE_WORKER_DIED, why);
}

void python_note_server(struct python *python, struct server *server)
{
    if (server->expected) {
        python_turn(python);
        return;
    }
    if (server->was_ready) {
        python->deaths++;
        log_warn("runtime %s: server %d died: %s", python->runtime.name, (int)server->pid,
                 server->why);
        end_copies(python, server);
        (void)back_off(python);
        python_turn(python);
        return;
    }
    note_failure(python, server->why, server->refused);
    if (in_charge(python) == NULL)
        refuse_all(python, server->refused, python->last_error);
    python_turn(python);
}

/* A copy was not ready in time.  On a busy machine it needs its time, and a new server would add to the load: the next ones get more,
 * and jobs wait.  True: they have had it all. */
static bool is_last_patience(struct python *python, const struct copy *copy)
{
    if (copy->patience_ms < python->patience_ms)
        return false; /* asked for before that was known */
    if (copy->patience_ms >= PATIENCE_MAX_MS)
        return true;
    python->patience_ms = 2 * copy->patience_ms;
    log_warn("runtime %s: a copy was not ready within %" PRId64 " s, the next ones have %" PRId64
             " s: is the machine overloaded?",
             python->runtime.name, copy->patience_ms / 1000, python->patience_ms / 1000);
    return false;
}

/* Its server may be no good.  But where the machine has no room for a process the server is not to blame: it and the jobs in its other
 * copies go on. */
static void note_copy_failure(struct python *python, struct copy *copy)
{
    int error = copy->verdict.cause == CAUSE_SPAWN ? copy->verdict.spawn_errno : 0;
    bool no_room = error != 0 && verdict_outcome(&copy->verdict, NULL) == OUTCOME_PUT_BACK;

    if (error == EPIPE)
        return; /* it is gone: its end says more */
    if (no_room) {
        copy->server->asked--; /* isolation instance: it still owes one */
        if (clock_mono_ms() < python->next_copy_ms)
            return; /* asked for before that was known */
        python->next_copy_ms = clock_mono_ms() + ROOM_WAIT_MS;
    }
    if (copy->was_slow && !is_last_patience(python, copy))
        return;
    log_warn("runtime %s: a copy did not become ready: %s", python->runtime.name, copy->why);
    if (++python->copy_failures < COPY_FAILURES_MAX && error != ETIMEDOUT && !copy->was_slow)
        return; /* one that does not answer holds up all who start something */
    python->copy_failures = 0;
    refuse_all(python, false, copy->why);
    if (no_room)
        return;
    log_warn("runtime %s: its server is no good, the next one starts in %" PRId64 " ms",
             python->runtime.name, back_off(python));
    server_kill(copy->server, copy->why);
}

void python_note_ready_copy(struct python *python, struct copy *copy)
{
    python->copy_failures = 0;
    python->failures = 0;
    if (clock_mono_ms() - copy->spawned_ms < PATIENCE_MS / 2)
        python->patience_ms = PATIENCE_MS;
}

void python_note_copy(struct python *python, struct copy *copy)
{
    struct python_ask *ask = copy->ask;

    if (copy->server != NULL && copy->server->state == SERVER_READY && !copy->expected &&
        !copy->was_ready)
        note_copy_failure(python, copy);
    /* A limit that this host cannot hold, say. */
    if (ask != NULL && ask->waiting && ask->own == copy) {
        ask->own = NULL;
        copy->ask = NULL;
        bool permanent = copy->verdict.cause == CAUSE_SPAWN &&
                         spawn_errno_permanent(copy->verdict.spawn_errno, copy->verdict.stage);
        refuse(ask, permanent ? -EOPNOTSUPP : -EAGAIN, copy->why);
    }
    python_turn(python);
}

/* ---- life cycle ---- */

int python_new(struct pythons *pythons, const struct python_runtime *runtime, struct python **ret)
{
    struct python *python = calloc(1, sizeof *python);

    if (python == NULL)
        return -ENOMEM;
    *python = (struct python){ .magic = PYTHON_MAGIC,
                               .pythons = pythons,
                               .wanted = runtime->named,
                               .handles = 2,
                               .patience_ms = PATIENCE_MS };
    list_init(&python->servers);
    list_init(&python->copies);
    list_init(&python->asks);
    if (python_runtime_copy(runtime, &python->runtime) < 0) {
        free(python);
        return -ENOMEM;
    }
    (void)uv_timer_init(pythons->loop, &python->tick);
    (void)uv_idle_init(pythons->loop, &python->turn);
    python->tick.data = python->turn.data = python;
    (void)uv_timer_start(&python->tick, on_tick, TICK_MS, TICK_MS);
    uv_unref((uv_handle_t *)&python->tick);
    list_push_back(&pythons->list, &python->node);
    python_turn(python);
    *ret = python;
    return 0;
}

int python_change(struct python *python, const struct python_runtime *runtime)
{
    struct python_runtime copy;

    python->leaving = false;
    python->wanted = python->wanted || runtime->named;
    python->next_start_ms = 0; /* what was wrong may be put right now */
    python_turn(python);
    if (python_runtime_same(&python->runtime, runtime))
        return 0;
    if (python_runtime_copy(runtime, &copy) < 0)
        return -ENOMEM;
    python_runtime_done(&python->runtime);
    python->runtime = copy;
    python->version++;
    return 0;
}

void python_leave(struct python *python)
{
    python->leaving = true;
    python_turn(python);
}

void python_close(struct python *python)
{
    python->closing = true;
    python_tend(python);
}

const struct python_runtime *python_runtime(const struct python *python)
{
    OBJ_CHECK(python, PYTHON_MAGIC);
    return &python->runtime;
}

static const char *state_of(const struct python *python)
{
    if (python->leaving || python->closing)
        return "draining";
    if (in_charge(python) != NULL)
        return "ready";
    if (any_coming(python))
        return "starting";
    return python->failures > 0 ? "failing" : "asleep";
}

json_t *python_json(const struct python *python)
{
    json_t *servers = json_array();
    int64_t ready = 0, busy = 0;

    LIST_FOREACH(server, &python->servers, struct server, node)
        (void)json_array_append_new(servers, server_json(server));
    LIST_FOREACH(copy, &python->copies, struct copy, node) {
        ready += copy->state == COPY_READY;
        busy += copy->events != NULL;
    }
    return json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:s?}", "name",
                     python->runtime.name, "state", state_of(python), "isolation",
                     python->runtime.isolation, "spares", (json_int_t)ready, "busy",
                     (json_int_t)busy, "waiting", (json_int_t)python->ask_count, "jobs",
                     (json_int_t)python->jobs, "recycles", (json_int_t)python->recycles, "deaths",
                     (json_int_t)python->deaths, "failed_starts", (json_int_t)python->failed_starts,
                     "servers", servers, "last_error",
                     python->last_error[0] != '\0' ? python->last_error : NULL);
}
