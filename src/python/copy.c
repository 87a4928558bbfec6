/* copy.c - one copy of a fork server: it warms up, waits for a job, becomes its asker's child; moves in copy_moves.def. */
#include <fcntl.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/deadline.h"
#include "base/json.h"
#include "base/log.h"
#include "python/python_int.h"

#define LEAVE_MS 2000 /* between the end of its channel and its own */

static const struct {
    enum copy_state from;
    enum copy_event event;
    enum copy_state to;
} moves[] = {
#define MOVE(from, event, to) { COPY_##from, COPY_##event, COPY_##to },
#include "python/copy_moves.def"
#undef MOVE
};

/* The state after `event`, or -EPROTO where copy_moves.def has no such move. */
static int copy_next(enum copy_state state, enum copy_event event)
{
    for (size_t i = 0; i < ARRAY_LEN(moves); i++)
        if (moves[i].from == state && moves[i].event == event)
            return (int)moves[i].to;
    return -EPROTO;
}

static void move(struct copy *copy, enum copy_event event)
{
    int next = copy_next(copy->state, event);

    BUG_ON(next < 0);
    copy->state = (enum copy_state)next;
}

static void note_why(struct copy *copy, const char *why)
{
    if (copy->why[0] == '\0')
        (void)snprintf(copy->why, sizeof copy->why, "%.*s", (int)sizeof copy->why - 1, why);
}

/* ---- the end ---- */

static void close_pipes(struct copy *copy)
{
    int *fds[] = { &copy->pipes.in, &copy->pipes.out, &copy->pipes.err, &copy->pipes.channel };

    for (size_t i = 0; i < ARRAY_LEN(fds); i++)
        if (*fds[i] >= 0)
            (void)close(STEAL_FD(*fds[i]));
}

static void on_part_closed(uv_handle_t *handle)
{
    struct copy *copy = handle->data;
    OBJ_CHECK(copy, COPY_MAGIC);

    if (--copy->parts > 0)
        return;
    struct python *python = copy->python;
    list_remove(&copy->node);
    python->copy_count--;
    OBJ_FINI(copy);
    free(copy);
    python_turn(python);
}

/* Before the descriptor is closed or given away. */
static void close_poll(struct copy *copy)
{
    if (!copy->poll_open)
        return;
    copy->poll_open = false;
    uv_close((uv_handle_t *)&copy->poll, on_part_closed);
}

static void end(struct copy *copy)
{
    close_poll(copy);
    close_pipes(copy);
    child_close(copy->child);
    copy->child = NULL;
    uv_close((uv_handle_t *)&copy->timer, on_part_closed);
}

void copy_close(struct copy *copy)
{
    OBJ_CHECK(copy, COPY_MAGIC);
    BUG_ON(copy->state != COPY_GONE);
    end(copy);
}

void copy_stop(struct copy *copy, enum cause cause, const char *why)
{
    note_why(copy, why);
    if (copy->state == COPY_SPAWNING || copy->state == COPY_WARMING || copy->state == COPY_READY) {
        copy->expected = true;
        move(copy, COPY_STOP);
    }
    if (copy->child != NULL)
        child_stop(copy->child, cause, 0);
}

static void on_impatient(uv_timer_t *timer)
{
    struct copy *copy = timer->data;
    OBJ_CHECK(copy, COPY_MAGIC);

    if (copy->child != NULL)
        child_stop(copy->child, CAUSE_SHUTDOWN, 0);
}

void copy_leave(struct copy *copy)
{
    if (copy->state != COPY_WARMING && copy->state != COPY_READY) {
        copy_stop(copy, CAUSE_SHUTDOWN, "not needed any more");
        return;
    }
    copy->expected = true;
    move(copy, COPY_STOP);
    close_poll(copy);
    close_pipes(copy); /* the end of its channel is the end of its wait */
    deadline_start(&copy->timer, on_impatient, LEAVE_MS);
}

static void on_exited(struct child *child, const struct verdict *verdict, void *arg)
{
    struct copy *copy = arg;
    struct verdict told = *verdict;

    copy->child = child;
    (void)uv_timer_stop(&copy->timer);
    move(copy, COPY_EXITED);
    if (copy->events != NULL) {
        if (verdict->cause == CAUSE_WORKER_DIED && copy->why[0] != '\0')
            (void)snprintf(told.error, sizeof told.error, "%s", copy->why);
        copy->events->on_exited(copy->arg, &told);
        return;
    }
    close_poll(copy);
    copy->verdict = *verdict;
    note_why(copy, verdict->error[0] != '\0' ? verdict->error : "it has ended by itself");
    child_empty(child);
    python_note_copy(copy->python, copy);
}

static void on_empty(struct child *child, void *arg)
{
    struct copy *copy = arg;

    (void)child;
    move(copy, COPY_EMPTY);
    if (copy->events != NULL)
        copy->events->on_empty(copy->arg);
    else
        end(copy);
}

static void on_kill_pending(struct child *child, void *arg)
{
    struct copy *copy = arg;

    (void)child;
    if (copy->events != NULL && copy->events->on_kill_pending != NULL)
        copy->events->on_kill_pending(copy->arg);
}

/* ---- warming up ---- */

static void on_slow(uv_timer_t *timer)
{
    struct copy *copy = timer->data;
    OBJ_CHECK(copy, COPY_MAGIC);

    if (copy->state != COPY_WARMING)
        return;
    copy->was_slow = true;
    copy_stop(copy, CAUSE_WORKER_DIED, "a copy was not ready in time");
    copy->expected = false;
}

/* Its first words: {"ready": {}} or {"failed": "why"}. */
static void hear(struct copy *copy)
{
    SCOPED_JSON *message = NULL;

    if (json_parse(copy->line, copy->line_len, &message, NULL) < 0)
        message = NULL;
    const json_t *ready = json_object_get(message, "ready");
    const char *failed = json_string_value(json_object_get(message, "failed"));
    if (!json_is_object(ready)) {
        copy_stop(copy, CAUSE_WORKER_DIED,
                  failed != NULL ? failed : "a copy says nothing that mandor understands");
        copy->expected = false;
        return;
    }
    copy->was_ready = true;
    (void)uv_timer_stop(&copy->timer);
    move(copy, COPY_SAID_READY);
    python_note_ready_copy(copy->python, copy);
    python_tend(copy->python);
}

static void on_readable(uv_poll_t *poll, int status, int events)
{
    struct copy *copy = poll->data;
    OBJ_CHECK(copy, COPY_MAGIC);
    size_t room = sizeof copy->line - copy->line_len;

    (void)events;
    ssize_t n = status < 0 || room == 0
                    ? 0
                    : RETRY_EINTR(read(copy->pipes.channel, copy->line + copy->line_len, room));
    if (n < 0 && errno == EAGAIN)
        return;
    (void)uv_poll_stop(poll);
    if (n <= 0 || copy->state != COPY_WARMING)
        return; /* its exit says the rest */
    copy->line_len += (size_t)n;
    if (copy->line[copy->line_len - 1] == '\n')
        hear(copy);
    else
        (void)uv_poll_start(poll, UV_READABLE, on_readable);
}

static void on_spawned(struct child *child, pid_t pid, const struct child_pipes *pipes, void *arg)
{
    struct copy *copy = arg;
    uv_loop_t *loop = copy->python->pythons->loop;

    (void)pid;
    copy->child = child;
    copy->pipes = *pipes;
    move(copy, COPY_SPAWNED);
    if (copy->state != COPY_WARMING)
        return;
    if (copy->server != NULL)
        copy->server->forks++;
    int r = uv_poll_init(loop, &copy->poll, copy->pipes.channel);
    if (r == 0) {
        copy->poll.data = copy;
        copy->poll_open = true;
        copy->parts++;
        r = uv_poll_start(&copy->poll, UV_READABLE, on_readable);
    }
    if (r < 0)
        copy_stop(copy, CAUSE_WORKER_DIED, strerror(-r));
    copy->patience_ms = copy->python->patience_ms;
    copy->spawned_ms = clock_mono_ms();
    deadline_start(&copy->timer, on_slow, copy->patience_ms);
}

/* ---- to its owner ---- */

void copy_hand(struct copy *copy, struct python_ask *ask)
{
    move(copy, COPY_TAKE);
    copy->ask = NULL;
    ask->own = NULL;
    ask->waiting = false;
    list_remove(&ask->node);
    copy->python->ask_count--;
    copy->python->jobs++;
    python_refill_later(copy->python);
    ask->events->on_copy(ask->arg, copy);
    BUG_ON(copy->events == NULL);
}

/* Ends of the same pipes: the copy keeps its own for the next job. */
static int lend(const struct child_pipes *from, struct child_pipes *to)
{
    const int own[] = { from->in, from->out, from->err, from->channel };
    int *lent[] = { &to->in, &to->out, &to->err, &to->channel };

    for (size_t i = 0; i < ARRAY_LEN(own); i++)
        if ((*lent[i] = fcntl(own[i], F_DUPFD_CLOEXEC, 10)) < 0)
            return -errno;
    return 0;
}

int copy_adopt(struct copy *copy, const struct copy_events *events, void *arg,
               struct child_pipes *ret_pipes)
{
    OBJ_CHECK(copy, COPY_MAGIC);
    BUG_ON(copy->state != COPY_TAKEN || copy->events != NULL);
    close_poll(copy);
    copy->events = events;
    copy->arg = arg;
    *ret_pipes = (struct child_pipes){ -1, -1, -1, -1 };
    if (!copy->lasting) {
        *ret_pipes = copy->pipes;
        copy->pipes = (struct child_pipes){ -1, -1, -1, -1 };
        return 0;
    }
    int r = lend(&copy->pipes, ret_pipes);
    if (r < 0)
        child_stop(copy->child, CAUSE_SHUTDOWN, 0);
    return r;
}

void copy_release(struct copy *copy, bool reuse)
{
    OBJ_CHECK(copy, COPY_MAGIC);
    copy->events = NULL;
    copy->arg = NULL;
    if (copy->state == COPY_GONE) { /* it died between its last word and now */
        end(copy);
        return;
    }
    if (copy->state != COPY_TAKEN) { /* dying: nobody else will ask for its end */
        child_empty(copy->child);
        return;
    }
    move(copy, COPY_RELEASE);
    if (reuse)
        python_turn(copy->python);
    else
        copy_leave(copy);
}

struct child *copy_child(const struct copy *copy)
{
    return copy->child;
}

/* ---- the beginning ---- */

int copy_start(struct server *server, struct python_ask *ask)
{
    static const struct child_events events = { .on_spawned = on_spawned,
                                                .on_exited = on_exited,
                                                .on_empty = on_empty,
                                                .on_kill_pending = on_kill_pending };
    struct python *python = server->python;
    struct copy *copy = calloc(1, sizeof *copy);
    char label[128];

    if (copy == NULL)
        return -ENOMEM;
    *copy = (struct copy){ .magic = COPY_MAGIC,
                           .python = python,
                           .server = server,
                           .version = server->version,
                           .ask = ask,
                           .lasting = str_eq(server->runtime.isolation, "scope"),
                           .pipes = { -1, -1, -1, -1 },
                           .parts = 1, /* the timer */
                           .asked_ms = clock_mono_ms() };
    (void)snprintf(label, sizeof label, "python.%.80s.copy.%" PRIu64, python->runtime.name,
                   ++python->next_copy);
    struct child_launch launch = { .label = label,
                                   .zygote_fd = server->socket,
                                   .zygote_urgent = python->ask_count > 0,
                                   .stdout_fd = -1,
                                   .stderr_fd = -1,
                                   .no_new_privs = true,
                                   .containment = pythons_containment(python->pythons) };
    if (ask != NULL) {
        launch.limits = ask->limits;
        launch.limits_policy = ask->policy;
    }
    int r = child_start(python->pythons->nursery, &launch, &events, copy, &copy->child);
    if (r < 0) {
        free(copy);
        return r;
    }
    (void)uv_timer_init(python->pythons->loop, &copy->timer);
    copy->timer.data = copy;
    list_push_back(&python->copies, &copy->node);
    python->copy_count++;
    server->asked++;
    if (ask != NULL)
        ask->own = copy;
    return 0;
}
