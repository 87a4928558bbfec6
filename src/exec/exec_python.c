/* exec_python.c - executor `python`: one job, one copy of a started Pyodide (python/python.h).
 *
 * The copy is a child as any other, so what follows its start is what follows the start of a process (job_tree.h):
 *
 *   a copy is ready ─▶ its job goes down the channel ─▶ … ─▶ reaped ─▶ drain both pipes ─▶ empty ─▶ on_ended
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/metrics.h"
#include "exec/job_tree.h"
#include "os/zygote_wire.h"
#include "python/python.h"

#define LINE_SLACK ((size_t)64 << 10) /* of a line beside the result in it */

struct snake {
    struct job_tree tree; /* first; its child is that of the copy */
    struct python *python;
    struct python_ask ask;
    struct copy *copy; /* NULL before there is one */
    struct buf frame;  /* the job, on its way */
    size_t frame_at;
    int frame_fd;
    uv_poll_t frame_poll;
    bool frame_open;
    unsigned open; /* the tree, and frame_poll */
    /* isolation scope: the job is over, its process is not */
    bool said_end, left, recycle, stop_asked;
    char key[2 * ZYGOTE_KEY_SIZE + 1]; /* of the word that says so: no job knows it */
    enum spec_containment rung;
    int64_t asked_ns;     /* monotonic */
    char *error;          /* what Python said of its end */
    char fatal[200];      /* what broke the interpreter */
    int64_t result_bytes; /* of a result that is too long */
};

static struct snake *state_of(const struct execution *execution)
{
    return execution_state(execution);
}

static const struct spec *spec_of(const struct execution *execution)
{
    return execution_request(execution)->spec;
}

static bool is_scope(const struct snake *snake)
{
    return str_eq(python_runtime(snake->python)->isolation, "scope");
}

/* ---- the channel: what the copy says ---- */

static void on_value(void *arg, const char *kind, json_t *value)
{
    struct execution *execution = arg;
    struct snake *snake = state_of(execution);
    const struct execution_events *events = execution_events(execution);
    const char *text = json_string_value(value);
    const char *key = json_string_value(json_object_get(value, "key"));

    if (str_eq(kind, "result")) {
        execution_keep_result(execution, value);
    } else if (str_eq(kind, "progress")) {
        execution_keep_progress(execution, value);
    } else if (str_eq(kind, "end")) {
        if (key == NULL || !str_eq(key, snake->key))
            return; /* the job's own words */
        snake->tree.verdict = (struct verdict){
            .cause = CAUSE_EXIT,
            .exit_code = (int)json_integer_value(json_object_get(value, "code")),
            .user_us = json_integer_value(json_object_get(value, "user_us")),
            .system_us = json_integer_value(json_object_get(value, "system_us")),
        };
        snake->recycle = json_is_true(json_object_get(value, "recycle"));
        snake->said_end = snake->tree.verdict.exit_code >= 0 && !snake->tree.exited;
        if (snake->said_end)
            snake->tree.child = NULL;
    } else if (str_eq(kind, "over")) {
        snake->result_bytes = json_integer_value(value);
    } else if (text == NULL) {
        return;
    } else if (str_eq(kind, "log")) {
        if (events->on_log != NULL)
            events->on_log(execution_arg(execution), text);
    } else if (str_eq(kind, "error")) {
        free(snake->error);
        snake->error = strdup(text);
    } else {
        (void)snprintf(snake->fatal, sizeof snake->fatal, "%.*s", (int)sizeof snake->fatal - 1,
                       text);
    }
}

/* isolation scope: all that the job wrote is in its pipes, and its process waits for the next job. */
static void on_channel_activity(void *arg)
{
    struct snake *snake = state_of(arg);

    job_tree_heard(arg);
    if (snake->said_end && !snake->left) {
        snake->left = true;
        job_tree_empty(arg);
    }
}

static void stop(struct execution *execution, enum cause cause, int64_t grace_ms, const char *why)
{
    struct snake *snake = state_of(execution);
    struct verdict unrun = { .cause = cause, .exit_code = -1 };

    if (snake->copy == NULL && !snake->tree.ended && python_ask_withdraw(&snake->ask)) {
        if (why != NULL)
            (void)snprintf(unrun.error, sizeof unrun.error, "%s", why);
        job_tree_unrun(execution, &unrun);
        return;
    }
    snake->stop_asked = true;
    job_tree_stop(execution, cause, grace_ms, why);
    if (snake->said_end && snake->copy != NULL)
        child_stop(copy_child(snake->copy), cause, grace_ms);
}

/* ---- the job goes down ---- */

static void on_frame_closed(uv_handle_t *handle);

static void close_frame(struct snake *snake)
{
    if (!snake->frame_open)
        return;
    uv_close((uv_handle_t *)&snake->frame_poll, on_frame_closed); /* before its descriptor */
    (void)close(STEAL_FD(snake->frame_fd));
    snake->frame_open = false;
}

/* As much as goes.  True: all of it has gone, or nobody reads any more (its exit says why). */
static bool push_frame(struct snake *snake)
{
    while (snake->frame_at < snake->frame.len) {
        ssize_t n = RETRY_EINTR(write(snake->frame_fd, snake->frame.data + snake->frame_at,
                                      snake->frame.len - snake->frame_at));
        if (n < 0)
            return errno != EAGAIN;
        snake->frame_at += (size_t)n;
    }
    return true;
}

static void on_frame_room(uv_poll_t *poll, int status, int events)
{
    struct snake *snake = state_of(poll->data);

    (void)events;
    if (status < 0 || push_frame(snake))
        close_frame(snake);
}

/* {"memory": N, "cpu": N, "code": …}: the bounds stand first, where the harness finds them without parsing. */
static int make_frame(struct snake *snake, const struct spec *spec)
{
    static const char *const keys[] = { "code", "params", "bind_params" };
    SCOPED_JSON *job = json_object();
    unsigned char head[4 + ZYGOTE_KEY_SIZE] = { 0 };

    for (size_t i = 0; job != NULL && i < ARRAY_LEN(keys); i++) {
        json_t *value = json_object_get(spec->python, keys[i]);
        if (value != NULL && json_object_set(job, keys[i], value) < 0)
            return -ENOMEM;
    }
    int r = getentropy(head + 4, ZYGOTE_KEY_SIZE) < 0 ? -errno
                                                      : buf_add(&snake->frame, head, sizeof head);
    for (size_t i = 0; i < ZYGOTE_KEY_SIZE; i++)
        (void)snprintf(snake->key + 2 * i, 3, "%02x", head[4 + i]);
    if (r == 0)
        r = buf_addf(&snake->frame, "{\"memory\": %" PRId64 ", \"cpu\": %" PRId64 ",",
                     spec->limits.memory_bytes, (spec->limits.cpu_time_ms + 999) / 1000);
    size_t brace = snake->frame.len;
    if (r == 0)
        r = json_write(&snake->frame, job);
    if (r < 0)
        return r;
    snake->frame.data[brace] = ' ';
    size_t len = snake->frame.len - sizeof head;
    for (size_t i = 0; i < 4; i++)
        snake->frame.data[i] = (char)(len >> (8 * i));
    return 0;
}

/* fd: borrowed; the channel has it. */
static int send_frame(struct execution *execution, int fd)
{
    struct snake *snake = state_of(execution);
    int r = make_frame(snake, spec_of(execution));

    if (r < 0)
        return r;
    snake->frame_fd = fd;
    if (push_frame(snake)) /* the common case: it fits into the socket */
        return 0;
    snake->frame_fd = fcntl(fd, F_DUPFD_CLOEXEC, 10);
    if (snake->frame_fd < 0)
        return -errno;
    r = uv_poll_init(execution_request(execution)->env->loop, &snake->frame_poll, snake->frame_fd);
    if (r < 0) {
        (void)close(STEAL_FD(snake->frame_fd));
        return r;
    }
    snake->frame_poll.data = execution;
    snake->frame_open = true;
    snake->open++;
    return uv_poll_start(&snake->frame_poll, UV_WRITABLE, on_frame_room);
}

/* ---- the copy ---- */

static void on_exited(void *arg, const struct verdict *verdict);
static void on_empty(void *arg);
static void on_kill_pending(void *arg);

static void on_copy(void *arg, struct copy *copy)
{
    static const struct copy_events events = { .on_exited = on_exited,
                                               .on_empty = on_empty,
                                               .on_kill_pending = on_kill_pending };
    /* A copy that takes one job ends by ending: a word to that effect would be the job's own. */
    static const char *const one_job[] = { "progress", "log",  "result", "error",
                                           "fatal",    "over", NULL };
    static const char *const many_jobs[] = { "progress", "log",  "result", "error",
                                             "fatal",    "over", "end",    NULL };
    struct execution *execution = arg;
    struct snake *snake = state_of(execution);
    struct child *child = copy_child(copy);
    struct child_pipes pipes;
    const struct channel_events channel = {
        .kinds = is_scope(snake) ? many_jobs : one_job,
        .line_max = (size_t)python_runtime(snake->python)->result_max_bytes + LINE_SLACK,
        .on_value = on_value,
        .on_activity = on_channel_activity,
        .on_ended = job_tree_unheard,
    };

    int r = copy_adopt(copy, &events, execution, &pipes);
    snake->copy = copy;
    snake->tree.child = child;
    snake->rung = child_containment(child);
    if (r < 0) { /* nothing of it has run */
        stop(execution, CAUSE_SHUTDOWN, 0, strerror(-r));
        return;
    }
    child_note_cpu_time(child, spec_of(execution)->limits.cpu_time_ms);
    r = send_frame(execution, pipes.channel);
    job_tree_run(execution, child, &pipes, &channel);
    if (r < 0) /* nothing of it has run */
        stop(execution, CAUSE_SHUTDOWN, 0, strerror(-r));
}

static void on_refused(void *arg, const struct verdict *verdict)
{
    job_tree_unrun(arg, verdict);
}

static void on_exited(void *arg, const struct verdict *verdict)
{
    if (!state_of(arg)->said_end) /* else the job had ended before its process did */
        job_tree_exited(arg, verdict);
}

static void on_empty(void *arg)
{
    if (!state_of(arg)->said_end)
        job_tree_empty(arg);
}

static void on_kill_pending(void *arg)
{
    job_tree_phase(arg, "kill_pending");
}

/* V8 ends its process with SIGABRT where JavaScript's heap is full, and says so on standard error alone. */
static bool ran_out_of_memory(struct snake *snake)
{
    static const char words[] = "out of memory";
    struct filter_stats stats = { 0 };

    if (snake->tree.streams.err.filter != NULL)
        filter_stats(snake->tree.streams.err.filter, &stats);
    return stats.tail_len > 0 &&
           memmem(stats.tail, stats.tail_len, words, sizeof words - 1) != NULL;
}

/* ---- the verdict ---- */

/* The last line of a traceback is the exception; a copy that breaks down says of what. */
static void explain(struct snake *snake)
{
    struct verdict *verdict = &snake->tree.verdict;
    const int most = (int)sizeof verdict->error - 1;

    if (snake->result_bytes > 0 && verdict->cause == CAUSE_EXIT) {
        verdict->cause = CAUSE_LIMIT;
        (void)snprintf(verdict->error, sizeof verdict->error,
                       "the result has %" PRId64 " bytes as JSON, at most %" PRId64
                       " are kept (result_max)",
                       snake->result_bytes, python_runtime(snake->python)->result_max_bytes);
    } else if (snake->tree.channel != NULL && channel_refused(snake->tree.channel) > 0 &&
               verdict->cause == CAUSE_EXIT) {
        verdict->cause = CAUSE_LIMIT;
        (void)snprintf(verdict->error, sizeof verdict->error,
                       "the result holds more values than mandor takes (%zu, objects count more)",
                       CHANNEL_COST_MAX);
    } else if (snake->error != NULL && verdict->cause == CAUSE_EXIT) {
        const char *last = strrchr(snake->error, '\n');
        (void)snprintf(verdict->error, sizeof verdict->error, "%.*s", most,
                       last != NULL ? last + 1 : snake->error);
    } else if (snake->fatal[0] != '\0' && verdict->cause == CAUSE_SIGNAL) {
        (void)snprintf(verdict->error, sizeof verdict->error,
                       "the interpreter broke down: %.180s (SIGABRT)", snake->fatal);
    } else if (verdict->cause == CAUSE_SIGNAL && verdict->signal == SIGABRT) {
        bool full = ran_out_of_memory(snake);
        if (full)
            verdict->cause = CAUSE_OOM;
        (void)snprintf(verdict->error, sizeof verdict->error, "%s in the interpreter (SIGABRT)",
                       full ? "out of memory" : "abort");
    }
}

/* Every byte of this job has left its pipes. */
static void on_last(struct execution *execution)
{
    struct snake *snake = state_of(execution);
    struct verdict *verdict = &snake->tree.verdict;
    const struct job_streams *streams = &snake->tree.streams;

    metric_observe(METRIC_python_us, (clock_mono_ns() - snake->asked_ns) / 1000);
    explain(snake);
    if (!snake->said_end)
        return;
    if (verdict->exit_code > 0 && verdict->error[0] == '\0')
        (void)snprintf(verdict->error, sizeof verdict->error, "exit code %d", verdict->exit_code);
    bool clean = streams->out.result == 0 && streams->err.result == 0;
    copy_release(STEAL(snake->copy), clean && !snake->recycle && !snake->stop_asked);
}

/* ---- the ops ---- */

/* The package that the runtime does not name, or NULL. */
static const char *missing_package(const struct snake *snake, const struct spec *spec)
{
    const json_t *packages = json_object_get(spec->python, "packages");

    for (size_t i = 0; i < json_array_size(packages); i++) {
        const char *name = json_string_value(json_array_get(packages, i));
        if (!python_runtime_offers(python_runtime(snake->python), name))
            return name;
    }
    return NULL;
}

/* One process takes job after job: what bounds a process cannot bound a job, and its standard input never ends. */
static int check_scope(const struct snake *snake, const struct spec *spec, struct mandor_err *err)
{
    const struct spec_limits *limits = &spec->limits;
    const char *name = python_runtime(snake->python)->name;

    if (!is_scope(snake))
        return 0;
    if (spec->stdin_src.bytes != NULL)
        return err_set(err, -EOPNOTSUPP, FAULT_CALLER,
                       "runtime '%.60s' has isolation 'scope', whose jobs have no stdin", name);
    if (spec->limits_policy == LIMITS_STRICT &&
        (limits->memory_bytes > 0 || limits->cpu_time_ms > 0 || limits->cpu > 0))
        return err_set(err, -EOPNOTSUPP, FAULT_CALLER,
                       "runtime '%.60s' has isolation 'scope', which cannot hold limits of memory "
                       "or processor",
                       name);
    return 0;
}

static int start(struct execution *execution, struct mandor_err *err)
{
    static const struct python_ask_events events = { .on_copy = on_copy, .on_refused = on_refused };
    const struct execution_request *request = execution_request(execution);
    const struct spec *spec = request->spec;
    struct snake *snake = state_of(execution);
    const char *named = json_string_value(json_object_get(spec->python, "runtime"));

    snake->python = pythons_find(request->env->pythons, named != NULL ? named : "default", err);
    if (snake->python == NULL)
        return -EOPNOTSUPP;
    const char *missing = missing_package(snake, spec);
    if (missing != NULL)
        return err_set(err, -EOPNOTSUPP, FAULT_CALLER,
                       "package '%.60s' is not in runtime '%.60s' (python.runtimes.%.60s.packages)",
                       missing, python_runtime(snake->python)->name,
                       python_runtime(snake->python)->name);
    int r = check_scope(snake, spec, err);
    if (r < 0)
        return r;
    r = job_tree_open(execution, on_last);
    if (r < 0) {
        (void)job_streams_close(&snake->tree.streams, NULL, NULL);
        return err_set(err, r, FAULT_HOST, "start job %s", request->id);
    }
    snake->frame_fd = -1;
    snake->open = 1;
    snake->asked_ns = clock_mono_ns();
    python_ask(snake->python, &snake->ask, &spec->limits, spec->limits_policy, &events, execution);
    return 0;
}

static const char *error(const struct execution *execution)
{
    const struct snake *snake = state_of(execution);
    return snake->tree.verdict.cause == CAUSE_EXIT ? snake->error : NULL;
}

/* A copy has no other process, opens no file and writes none: those bounds hold by themselves. */
static json_t *limits_enforced(const struct execution *execution)
{
    const struct spec_limits *limits = &execution_request(execution)->spec->limits;
    const struct {
        const char *name;
        bool asked;
    } all[] = {
        { "memory", limits->memory_bytes > 0 },       { "pids", limits->pids > 0 },
        { "cpu_time", limits->cpu_time_ms > 0 },      { "open_files", limits->open_files > 0 },
        { "file_size", limits->file_size_bytes > 0 },
    };
    const struct snake *snake = state_of(execution);
    json_t *enforced = snake->copy != NULL ? child_limits_enforced(copy_child(snake->copy)) : NULL;

    for (size_t i = 0; i < ARRAY_LEN(all); i++) {
        if (!all[i].asked)
            continue;
        if (enforced == NULL)
            enforced = json_object();
        (void)json_object_set_new(enforced, all[i].name, json_true());
    }
    return enforced;
}

static const char *containment(const struct execution *execution)
{
    const struct snake *snake = state_of(execution);
    return snake->rung != CONTAIN_AUTO ? spec_containment_name(snake->rung) : NULL;
}

static void on_part_closed(struct execution *execution)
{
    struct snake *snake = state_of(execution);

    if (--snake->open > 0)
        return;
    buf_done(&snake->frame);
    free(snake->error);
    execution_closed(execution);
}

static void on_frame_closed(uv_handle_t *handle)
{
    on_part_closed(handle->data);
}

static void close_execution(struct execution *execution)
{
    struct snake *snake = state_of(execution);

    close_frame(snake);
    if (snake->copy != NULL)
        copy_close(snake->copy);
    job_tree_close(execution, on_part_closed);
}

const struct executor_ops executor_python = {
    .name = "python",
    .kind = SPEC_PYTHON,
    .state_size = sizeof(struct snake),
    .start = start,
    .stop = stop,
    .suspend = job_tree_suspend,
    .sink_ready = job_tree_sink_ready,
    .streams = job_tree_streams,
    .error = error,
    .limits_enforced = limits_enforced,
    .containment = containment,
    .close = close_execution,
};
