/* server.c - one fork server: Node, with Pyodide started in it, that makes copies of itself; moves in server_moves.def.
 *
 *   work out the wheels (pool thread) ─▶ spawn ─▶ say what to load ─▶ {"ready"} ─▶ the spawner thread asks it for copies
 */
#include <fcntl.h>
#include <stdio.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/deadline.h"
#include "base/json.h"
#include "base/log.h"
#include "base/words.h"
#include "os/zygote_wire.h"
#include "pool/inspect.h"
#include "python/locate.h"
#include "python/python_int.h"

#define LEAVE_MS 5000 /* between the end of its socket and its own */

static const struct {
    enum server_state from;
    enum server_event event;
    enum server_state to;
} moves[] = {
#define MOVE(from, event, to) { SERVER_##from, SERVER_##event, SERVER_##to },
#include "python/server_moves.def"
#undef MOVE
};

static const char *const state_names[SERVER_STATES] = {
    "resolving", "spawning", "loading", "ready", "leaving", "ending", "gone",
};

/* The state after `event`, or -EPROTO where server_moves.def has no such move. */
static int server_next(enum server_state state, enum server_event event)
{
    for (size_t i = 0; i < ARRAY_LEN(moves); i++)
        if (moves[i].from == state && moves[i].event == event)
            return (int)moves[i].to;
    return -EPROTO;
}

static void move(struct server *server, enum server_event event)
{
    int next = server_next(server->state, event);

    BUG_ON(next < 0);
    log_debug("python", "runtime %s: server %" PRIu64 ": %s -> %s", server->runtime.name,
              server->number, state_names[server->state], state_names[next]);
    server->state = (enum server_state)next;
}

static void note_why(struct server *server, const char *why)
{
    if (server->why[0] == '\0')
        (void)snprintf(server->why, sizeof server->why, "%.*s", (int)sizeof server->why - 1, why);
}

/* ---- the end ---- */

static void on_part_closed(void *arg)
{
    struct server *server = arg;
    OBJ_CHECK(server, SERVER_MAGIC);

    if (--server->parts > 0)
        return;
    struct python *python = server->python;
    list_remove(&server->node);
    python->server_count--;
    python_runtime_done(&server->runtime);
    store_wheels_done(&server->wheels);
    words_free(server->argv);
    words_free(server->envp);
    free(server->store);
    free(server->node_program);
    free(server->harness);
    json_decref(server->ready);
    OBJ_FINI(server);
    free(server);
    python_turn(python);
}

static void on_handle_closed(uv_handle_t *handle)
{
    on_part_closed(handle->data);
}

static void close_socket(struct server *server)
{
    if (server->poll_open) { /* before its descriptor: see stop_io() of peer.c */
        server->poll_open = false;
        server->parts++;
        uv_close((uv_handle_t *)&server->poll, on_handle_closed);
    }
    if (server->socket >= 0)
        (void)close(STEAL_FD(server->socket));
}

static void close_parts(struct server *server)
{
    LIST_FOREACH(copy, &server->python->copies, struct copy, node)
        if (copy->server == server)
            copy->server = NULL;
    close_socket(server);
    server->parts += 1u + (server->out != NULL) + (server->err != NULL);
    uv_close((uv_handle_t *)&server->timer, on_handle_closed);
    if (server->out != NULL)
        prints_close(server->out, on_part_closed, server);
    if (server->err != NULL)
        prints_close(server->err, on_part_closed, server);
    on_part_closed(server);
}

static void on_impatient(uv_timer_t *timer)
{
    struct server *server = timer->data;
    OBJ_CHECK(server, SERVER_MAGIC);

    if (server->state == SERVER_LOADING)
        note_why(server, "not ready within start_timeout");
    if (server->child != NULL)
        child_stop(server->child, CAUSE_SHUTDOWN, 0);
}

void server_leave(struct server *server, const char *why)
{
    if (server->state != SERVER_SPAWNING && server->state != SERVER_LOADING &&
        server->state != SERVER_READY)
        return;
    bool served = server->state == SERVER_READY;
    server->expected = true;
    note_why(server, why);
    move(server, SERVER_LEAVE);
    close_socket(server);
    if (served) /* it sees the end when the last request is answered */
        deadline_start(&server->timer, on_impatient, LEAVE_MS);
    else
        child_stop(server->child, CAUSE_SHUTDOWN, 0);
}

void server_kill(struct server *server, const char *why)
{
    note_why(server, why);
    if (server->child != NULL)
        child_stop(server->child, CAUSE_WORKER_DIED, 0);
}

/* ---- what it says ---- */

static void on_out_line(void *arg, const char *line)
{
    struct server *server = arg;
    log_info("runtime %s: server %d: %s", server->runtime.name, (int)server->pid, line);
}

static void on_err_line(void *arg, const char *line)
{
    struct server *server = arg;

    log_warn("runtime %s: server %d: %s", server->runtime.name, (int)server->pid, line);
    /* The last line before its end may say why. */
    if (!server->was_ready && !server->refused && server->err != NULL)
        (void)snprintf(server->why, sizeof server->why, "%.*s", (int)sizeof server->why - 1, line);
}

static void become_ready(struct server *server, json_t *ready)
{
    server->ready = json_incref(ready);
    server->was_ready = true;
    server->ready_ms = clock_mono_ms();
    server->why[0] = '\0';
    (void)uv_timer_stop(&server->timer);
    (void)uv_poll_stop(&server->poll); /* the spawner thread reads from here on */
    move(server, SERVER_SAID_READY);
    server->python->refused = false;
    server->python->last_error[0] = '\0';
    log_info("runtime %s: server %d is ready after %" PRId64 " ms: Node %s, Pyodide %s",
             server->runtime.name, (int)server->pid, server->ready_ms - server->started_ms,
             json_string_value(json_object_get(ready, "node")),
             json_string_value(json_object_get(ready, "pyodide")));
    python_tend(server->python);
}

static void hear(struct server *server, const char *text, size_t len)
{
    SCOPED_JSON *message = NULL;
    json_t *ready = NULL;

    if (json_parse(text, len, &message, NULL) == 0)
        ready = json_object_get(message, "ready");
    const char *failed = json_string_value(json_object_get(message, "failed"));
    if (json_is_object(ready)) {
        become_ready(server, ready);
        return;
    }
    server->refused = failed != NULL;
    if (server->refused)
        server->why[0] = '\0'; /* its own sentence is better than what it has printed */
    server_kill(server, failed != NULL ? failed : "it says nothing that mandor understands");
}

static void on_readable(uv_poll_t *poll, int status, int events)
{
    static char message[ZYGOTE_MESSAGE_MAX];
    struct server *server = poll->data;
    OBJ_CHECK(server, SERVER_MAGIC);

    (void)events;
    if (server->state != SERVER_LOADING)
        return;
    ssize_t n =
        status < 0 ? 0 : RETRY_EINTR(recv(server->socket, message, sizeof message, MSG_DONTWAIT));
    if (n < 0 && errno == EAGAIN)
        return;
    if (n > 0)
        hear(server, message, (size_t)n);
    else
        (void)uv_poll_stop(poll); /* its exit says the rest */
}

/* What to load. */
static int say_config(struct server *server)
{
    const struct python_runtime *runtime = &server->runtime;
    SCOPED_JSON *wheels = json_array(), *preload = json_array();

    for (size_t i = 0; i < server->wheels.count; i++)
        (void)json_array_append_new(wheels, json_string(server->wheels.at[i].path));
    for (char **name = runtime->preload; name != NULL && *name != NULL; name++)
        (void)json_array_append_new(preload, json_string(*name));
    SCOPED_JSON *config =
        json_pack("{s:s, s:s, s:s, s:I, s:I, s:O, s:O}", "runtime", runtime->name, "isolation",
                  runtime->isolation, "sandbox", runtime->sandbox, "result_max",
                  (json_int_t)runtime->result_max_bytes, "recycle_jobs",
                  (json_int_t)runtime->recycle_jobs, "wheels", wheels, "preload", preload);
    if (config != NULL && runtime->hash_seed != NULL)
        (void)json_object_set_new(config, "hash_seed", json_string(runtime->hash_seed));
    SCOPED_FREE char *text = config != NULL ? json_text(config) : NULL;
    if (text == NULL)
        return -ENOMEM;
    if (strlen(text) > ZYGOTE_MESSAGE_MAX)
        return -EMSGSIZE;
    return send(server->socket, text, strlen(text), MSG_NOSIGNAL) < 0 ? -errno : 0;
}

/* ---- the process ---- */

static void on_spawned(struct child *child, pid_t pid, const struct child_pipes *pipes, void *arg)
{
    struct server *server = arg;
    uv_loop_t *loop = server->python->pythons->loop;

    server->child = child;
    server->pid = pid;
    move(server, SERVER_SPAWNED);
    int r = prints_new(loop, pipes->out, on_out_line, server, &server->out);
    int r2 = prints_new(loop, pipes->err, on_err_line, server, &server->err);
    if (r < 0 || r2 < 0)
        log_warn("runtime %s: what server %d prints is lost: %s", server->runtime.name, (int)pid,
                 strerror(-(r < 0 ? r : r2)));
    if (server->state != SERVER_LOADING)
        return;
    r = uv_poll_init(loop, &server->poll, server->socket);
    if (r == 0) {
        server->poll.data = server;
        server->poll_open = true;
        r = uv_poll_start(&server->poll, UV_READABLE, on_readable);
    }
    if (r == 0)
        r = say_config(server);
    if (r < 0 && r != -EPIPE) /* it is gone: its exit says more */
        server_kill(server, strerror(-r));
    deadline_start(&server->timer, on_impatient, server->runtime.start_timeout_ms);
}

static void on_exited(struct child *child, const struct verdict *verdict, void *arg)
{
    struct server *server = arg;

    server->child = child;
    (void)uv_timer_stop(&server->timer);
    if (server->err != NULL)
        prints_finish(server->err);
    if (server->why[0] == '\0' && verdict->error[0] == '\0' && server->state == SERVER_LOADING)
        (void)snprintf(server->why, sizeof server->why,
                       "'%.150s' has ended without a word: is it Node 20, 22 or 24?",
                       server->node_program);
    if (server->why[0] == '\0')
        note_why(server, verdict->error[0] != '\0' ? verdict->error : "it has ended by itself");
    move(server, SERVER_EXITED);
    child_empty(child);
    python_note_server(server->python, server);
}

static void on_empty(struct child *child, void *arg)
{
    struct server *server = arg;

    if (server->out != NULL)
        prints_finish(server->out);
    move(server, SERVER_EMPTY);
    child_close(child);
    server->child = NULL;
    close_parts(server);
}

/* ---- the beginning ---- */

static void run_resolve(struct work *work)
{
    struct server *server = CONTAINER_OF(work, struct server, resolve);
    struct mandor_err *err = &server->resolve_err;
    const char *configured = server->python->pythons->node_program;

    int r = locate_harness(&server->harness, err);
    if (r == 0)
        r = locate_node(configured, server->harness, &server->node_program, err);
    if (r == 0)
        r = store_wheels(server->store, server->runtime.packages, &server->wheels, err);
    server->resolve_result = r;
}

static int make_vectors(struct server *server)
{
    static const char *const flags[] = {
        "--single-threaded",       "--v8-pool-size=0",  "--max-old-space-size=128",
        "--min-semi-space-size=8", "--no-wasm-code-gc", "--disallow-code-generation-from-strings"
    };
    size_t count = 0;

    server->argv = calloc(ARRAY_LEN(flags) + 3, sizeof *server->argv);
    server->envp = calloc(4, sizeof *server->envp);
    if (server->argv == NULL || server->envp == NULL)
        return -ENOMEM;
    if ((server->argv[count++] = strdup(server->node_program)) == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < ARRAY_LEN(flags); i++)
        if ((server->argv[count++] = strdup(flags[i])) == NULL)
            return -ENOMEM;
    if (asprintf(&server->argv[count], "%s/main.mjs", server->harness) < 0) {
        server->argv[count] = NULL;
        return -ENOMEM;
    }
    server->envp[0] = strdup("UV_USE_IO_URING=0");
    server->envp[1] = strdup("LD_BIND_NOW=1"); /* once, not in every copy */
    /* The loader knows no way to name a file with one of these. */
    if (strpbrk(server->harness, " :$") == NULL &&
        asprintf(&server->envp[2], "LD_PRELOAD=%s/mandor_places.so", server->harness) < 0)
        server->envp[2] = NULL;
    return server->envp[0] != NULL && server->envp[1] != NULL ? 0 : -ENOMEM;
}

static int launch(struct server *server)
{
    static const struct child_events events = { .on_spawned = on_spawned,
                                                .on_exited = on_exited,
                                                .on_empty = on_empty };
    int pair[2];
    char label[128];

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return -errno;
    SCOPED_FD theirs = pair[1];
    server->socket = pair[0];
    (void)snprintf(label, sizeof label, "python.%.80s.%" PRIu64, server->runtime.name,
                   server->number);
    struct child_launch launch = { .label = label,
                                   .argv = server->argv,
                                   .envp = server->envp,
                                   .no_new_privs = true,
                                   .channel_fd = theirs,
                                   .stdout_fd = -1,
                                   .stderr_fd = -1,
                                   .containment = pythons_containment(server->python->pythons) };

    return child_start(server->python->pythons->nursery, &launch, &events, server, &server->child);
}

static void after_resolve(struct work *work)
{
    struct server *server = CONTAINER_OF(work, struct server, resolve);
    OBJ_CHECK(server, SERVER_MAGIC);
    int r = server->resolve_result;

    if (r < 0) {
        server->refused = server->resolve_err.fault == FAULT_CALLER;
        note_why(server, server->resolve_err.msg);
    }
    if (r == 0 && server->expected)
        r = -ECANCELED;
    if (r == 0 && ((r = make_vectors(server)) < 0 || (r = launch(server)) < 0))
        note_why(server, strerror(-r));
    if (r == 0) {
        move(server, SERVER_RESOLVED);
        return;
    }
    move(server, SERVER_EMPTY);
    python_note_server(server->python, server);
    close_parts(server);
}

/* ---- its memory, looked at from time to time ---- */

static void run_look(struct work *work)
{
    struct server *server = CONTAINER_OF(work, struct server, resolve);
    struct inspection seen = { 0 };

    server->resolve_result = inspect(server->pid, false, NULL, &seen);
    server->memory_bytes = seen.memory_bytes;
}

static void after_look(struct work *work)
{
    struct server *server = CONTAINER_OF(work, struct server, resolve);
    OBJ_CHECK(server, SERVER_MAGIC);

    server->looking = false;
    if (server->resolve_result == 0 && server->state == SERVER_READY && server->due == NULL &&
        server->memory_bytes > server->runtime.max_memory_bytes)
        server->due = "max_memory";
    on_part_closed(server);
}

void server_look(struct server *server)
{
    if (server->looking || server->state != SERVER_READY || server->runtime.max_memory_bytes == 0)
        return;
    server->looking = true;
    server->parts++;
    work_submit(server->python->pythons->loop, &server->resolve, WORK_CPU, run_look, after_look);
}

static void discard(struct server *server)
{
    python_runtime_done(&server->runtime);
    free(server->store);
    free(server);
}

int server_start(struct python *python)
{
    struct server *server = calloc(1, sizeof *server);
    const char *store = python->pythons->store;

    if (server == NULL)
        return -ENOMEM;
    *server = (struct server){ .magic = SERVER_MAGIC,
                               .python = python,
                               .number = ++python->next_number,
                               .version = python->version,
                               .socket = -1,
                               .parts = 1, /* until close_parts() */
                               .started_ms = clock_mono_ms(),
                               .age_max_ms = python->runtime.max_age_ms };
    if (store != NULL && (server->store = strdup(store)) == NULL) {
        discard(server);
        return -ENOMEM;
    }
    if (python_runtime_copy(&python->runtime, &server->runtime) < 0) {
        discard(server);
        return -ENOMEM;
    }
    (void)uv_timer_init(python->pythons->loop, &server->timer);
    server->timer.data = server;
    list_push_back(&python->servers, &server->node);
    python->server_count++;
    work_submit(python->pythons->loop, &server->resolve, WORK_UNKNOWN, run_resolve, after_resolve);
    return 0;
}

json_t *server_json(const struct server *server)
{
    return json_pack("{s:i, s:s, s:I, s:I, s:O?, s:s?}", "pid", (int)server->pid, "state",
                     state_names[server->state], "copies", (json_int_t)server->forks, "age_ms",
                     (json_int_t)(clock_mono_ms() - server->started_ms), "ready", server->ready,
                     "due", server->due);
}
