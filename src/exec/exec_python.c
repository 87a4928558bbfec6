/* exec_python.c - executor `python`: one job, one copy of a started Pyodide (python/python.h).
 *
 * The copy is a child as any other, so what follows its start is what follows the start of a process (exec_process.c):
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
#include "child/child.h"
#include "exec/channel.h"
#include "exec/executor_ops.h"
#include "exec/job_streams.h"
#include "exec/watchdog.h"
#include "python/python.h"
#include "stream/feeder.h"

#define DRAIN_IDLE_MS 500
#define LINE_SLACK    ((size_t)64 << 10) /* of a line beside the result in it */

enum gate {
    GATE_DRAIN_OUT = 1 << 0,
    GATE_DRAIN_ERR = 1 << 1,
    GATE_TREE = 1 << 2, /* nothing of the copy is alive, or there never was one */
    GATE_OUT = 1 << 3,
    GATE_ERR = 1 << 4,
    GATE_CHANNEL = 1 << 5,
    GATES_DRAIN = GATE_DRAIN_OUT | GATE_DRAIN_ERR,
    GATES_STREAMS = GATE_OUT | GATE_ERR,
};

struct snake {
    struct python *python;
    struct python_ask ask;
    struct copy *copy; /* NULL before there is one */
    struct job_streams streams;
    struct feeder *feeder;
    struct channel *channel;
    struct watchdog watchdog;
    struct buf frame; /* the job, on its way */
    size_t frame_at;
    int frame_fd;
    uv_poll_t frame_poll;
    bool frame_open;
    unsigned waiting; /* gates that are still shut */
    unsigned closing; /* handles that are still open, at the end */
    bool exited, ended, close_asked;
    bool said_end, recycle, stop_asked; /* isolation scope: the job is over, its process is not */
    enum spec_containment rung;
    int64_t asked_ns; /* monotonic */
    struct verdict verdict;
    char why[200];        /* why mandor stopped it */
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

static void phase(struct execution *execution, const char *name)
{
    const struct execution_events *events = execution_events(execution);
    if (events->on_phase != NULL)
        events->on_phase(execution_arg(execution), name);
}

static bool is_scope(const struct snake *snake)
{
    return str_eq(python_runtime(snake->python)->isolation, "scope");
}

/* ---- the end: gates ---- */

static void try_end(struct execution *execution)
{
    struct snake *snake = state_of(execution);

    if (snake->waiting != 0 || snake->ended)
        return;
    snake->ended = true;
    metric_observe(METRIC_python_us, (clock_mono_ns() - snake->asked_ns) / 1000);
    if (snake->copy != NULL)
        snake->verdict.descendants_killed = child_descendants_killed(copy_child(snake->copy));
    if (snake->said_end) { /* every byte of this job has left its pipes */
        bool clean = snake->streams.out.result == 0 && snake->streams.err.result == 0;
        copy_release(STEAL(snake->copy), clean && !snake->recycle && !snake->stop_asked);
    }
    job_streams_judge(&snake->streams, &snake->verdict);
    execution_events(execution)->on_ended(execution_arg(execution), &snake->verdict);
}

static void open_gate(struct execution *execution, unsigned gates)
{
    struct snake *snake = state_of(execution);
    bool was_draining = (snake->waiting & GATES_DRAIN) != 0;

    snake->waiting &= ~gates;
    if (snake->exited && was_draining && (snake->waiting & GATES_DRAIN) == 0)
        child_empty(copy_child(snake->copy));
    try_end(execution);
}

/* ---- streams ---- */

static unsigned gate_of(const struct job_stream *stream)
{
    return stream->is_stderr ? GATE_ERR : GATE_OUT;
}

static unsigned drain_gate_of(const struct job_stream *stream)
{
    return stream->is_stderr ? GATE_DRAIN_ERR : GATE_DRAIN_OUT;
}

static void on_stream_ended(struct execution *execution, struct job_stream *stream)
{
    struct snake *snake = state_of(execution);

    if (stream->result < 0 && snake->copy != NULL && !snake->said_end)
        child_stop(copy_child(snake->copy), snake->streams.cause,
                   spec_of(execution)->kill_after_ms);
    open_gate(execution, gate_of(stream) | drain_gate_of(stream));
}

static void on_drained(void *arg)
{
    struct job_stream *stream = arg;
    open_gate(stream->streams->execution, drain_gate_of(stream));
}

/* ---- the channel: what the copy says ---- */

static void on_value(void *arg, const char *kind, json_t *value)
{
    struct execution *execution = arg;
    struct snake *snake = state_of(execution);
    const struct execution_events *events = execution_events(execution);
    const char *text = json_string_value(value);

    if (str_eq(kind, "result")) {
        execution_keep_result(execution, value);
    } else if (str_eq(kind, "progress")) {
        execution_keep_progress(execution, value);
    } else if (str_eq(kind, "end")) {
        snake->verdict = (struct verdict){
            .cause = CAUSE_EXIT,
            .exit_code = (int)json_integer_value(json_object_get(value, "code")),
            .user_us = json_integer_value(json_object_get(value, "user_us")),
            .system_us = json_integer_value(json_object_get(value, "system_us")),
        };
        snake->recycle = json_is_true(json_object_get(value, "recycle"));
        snake->said_end = snake->verdict.exit_code >= 0 && !snake->exited;
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

static void explain(struct execution *execution);

/* isolation scope: all that the job wrote is in its pipes, and its process waits for the next job. */
static void finish_scope(struct execution *execution)
{
    struct snake *snake = state_of(execution);

    watchdog_stop(&snake->watchdog);
    explain(execution);
    if (snake->verdict.exit_code > 0 && snake->verdict.error[0] == '\0')
        (void)snprintf(snake->verdict.error, sizeof snake->verdict.error, "exit code %d",
                       snake->verdict.exit_code);
    if (snake->waiting & GATE_OUT)
        filter_finish(snake->streams.out.filter);
    if (snake->waiting & GATE_ERR)
        filter_finish(snake->streams.err.filter);
    if (snake->waiting & GATE_CHANNEL)
        channel_finish(snake->channel);
    open_gate(execution, GATES_DRAIN | GATE_TREE);
}

static void on_channel_activity(void *arg)
{
    struct snake *snake = state_of(arg);

    snake->streams.active_at_ms = clock_mono_ms();
    if (snake->said_end && (snake->waiting & GATE_TREE) != 0)
        finish_scope(arg);
}

static void on_channel_ended(void *arg)
{
    open_gate(arg, GATE_CHANNEL);
}

static void start_channel(struct execution *execution, int fd)
{
    /* A copy that takes one job ends by ending: a word to that effect would be the job's own. */
    static const char *const one_job[] = { "progress", "log",  "result", "error",
                                           "fatal",    "over", NULL };
    static const char *const many_jobs[] = { "progress", "log",  "result", "error",
                                             "fatal",    "over", "end",    NULL };
    struct snake *snake = state_of(execution);
    struct channel_events events = {
        .kinds = is_scope(snake) ? many_jobs : one_job,
        .line_max = (size_t)python_runtime(snake->python)->result_max_bytes + LINE_SLACK,
        .on_value = on_value,
        .on_activity = on_channel_activity,
        .on_ended = on_channel_ended,
    };

    if (channel_new(execution_request(execution)->env->loop, fd, &events, execution,
                    &snake->channel) < 0)
        snake->waiting &= ~(unsigned)GATE_CHANNEL; /* the job runs on without being heard */
}

/* ---- stopping ---- */

static void finish_unrun(struct execution *execution, const struct verdict *verdict)
{
    struct snake *snake = state_of(execution);

    snake->verdict = *verdict;
    if (snake->why[0] != '\0' && verdict->cause != CAUSE_SPAWN)
        (void)snprintf(snake->verdict.error, sizeof snake->verdict.error, "%s", snake->why);
    watchdog_stop(&snake->watchdog);
    open_gate(execution, GATE_TREE);
}

static void stop(struct execution *execution, enum cause cause, int64_t grace_ms, const char *why)
{
    struct snake *snake = state_of(execution);

    if (why != NULL && snake->why[0] == '\0')
        (void)snprintf(snake->why, sizeof snake->why, "%.*s", (int)sizeof snake->why - 1, why);
    snake->stop_asked = true;
    if (snake->copy != NULL)
        child_stop(copy_child(snake->copy), cause, grace_ms);
    else if (!snake->ended && python_ask_withdraw(&snake->ask))
        finish_unrun(execution, &(struct verdict){ .cause = cause, .exit_code = -1 });
    if (!snake->ended)
        phase(execution, "stopping");
}

static void on_expired(struct execution *execution, enum cause cause, const char *why)
{
    stop(execution, cause, spec_of(execution)->kill_after_ms, why);
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
    unsigned char head[4] = { 0 };

    for (size_t i = 0; job != NULL && i < ARRAY_LEN(keys); i++) {
        json_t *value = json_object_get(spec->python, keys[i]);
        if (value != NULL && json_object_set(job, keys[i], value) < 0)
            return -ENOMEM;
    }
    int r = buf_add(&snake->frame, head, sizeof head);
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
    for (size_t i = 0; i < sizeof head; i++)
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
    snake->closing++;
    return uv_poll_start(&snake->frame_poll, UV_WRITABLE, on_frame_room);
}

/* ---- the copy ---- */

static void on_fed(void *arg, int result, const struct mandor_err *err)
{
    struct execution *execution = arg;

    if (result < 0) {
        job_streams_fail(&state_of(execution)->streams, CAUSE_SINK, err);
        stop(execution, CAUSE_SINK, spec_of(execution)->kill_after_ms, err->msg);
    }
}

static void start_feeder(struct execution *execution, int fd)
{
    const struct execution_request *request = execution_request(execution);
    struct snake *snake = state_of(execution);
    struct mandor_err err;

    if (request->spec->stdin_src.bytes == NULL)
        (void)close(fd); /* reading it is the end of file */
    else if (feeder_start(request->env->loop, request->spec->stdin_src.bytes, fd, on_fed, execution,
                          &snake->feeder, &err) < 0)
        on_fed(execution, err.code, &err);
}

static void adopt_pipe(struct job_stream *stream, int fd)
{
    struct mandor_err err;
    int r = filter_adopt_pipe(stream->filter, fd);

    if (r < 0) {
        (void)err_set(&err, r, FAULT_HOST, "watch the job's output");
        filter_fail(stream->filter, r, &err);
    } else if (stream->result < 0) { /* its sink had failed to open before there was a pipe */
        filter_fail(stream->filter, stream->result, &stream->streams->error);
    }
}

static void on_exited(void *arg, const struct verdict *verdict);
static void on_empty(void *arg);
static void on_kill_pending(void *arg);

static void on_copy(void *arg, struct copy *copy)
{
    static const struct copy_events events = { .on_exited = on_exited,
                                               .on_empty = on_empty,
                                               .on_kill_pending = on_kill_pending };
    struct execution *execution = arg;
    struct snake *snake = state_of(execution);
    const struct execution_events *told = execution_events(execution);
    struct child *child = copy_child(copy);
    struct child_pipes pipes;

    int r = copy_adopt(copy, &events, execution, &pipes);
    snake->copy = copy;
    snake->rung = child_containment(child);
    if (r < 0) { /* nothing of it has run */
        stop(execution, CAUSE_SHUTDOWN, 0, strerror(-r));
        return;
    }
    snake->waiting |= GATES_STREAMS | GATES_DRAIN | GATE_CHANNEL;
    watchdog_start(&snake->watchdog);
    child_note_cpu_time(child, spec_of(execution)->limits.cpu_time_ms);
    r = send_frame(execution, pipes.channel);
    adopt_pipe(&snake->streams.out, pipes.out);
    adopt_pipe(&snake->streams.err, pipes.err);
    start_channel(execution, pipes.channel);
    start_feeder(execution, pipes.in);
    if (told->on_running != NULL)
        told->on_running(execution_arg(execution), child_pid(child), child_slot(child),
                         spec_containment_name(child_containment(child)));
    if (r < 0) /* nothing of it has run */
        stop(execution, CAUSE_SHUTDOWN, 0, strerror(-r));
}

static void on_refused(void *arg, const struct verdict *verdict)
{
    finish_unrun(arg, verdict);
}

static void drain(struct job_stream *stream, int64_t cap_ms)
{
    struct snake *snake = state_of(stream->streams->execution);
    if (snake->waiting & drain_gate_of(stream))
        filter_drain(stream->filter, DRAIN_IDLE_MS, cap_ms, on_drained);
}

static void on_exited(void *arg, const struct verdict *verdict)
{
    struct execution *execution = arg;
    struct snake *snake = state_of(execution);
    const struct spec *spec = spec_of(execution);

    if (snake->said_end)
        return; /* the job had ended before its process did */
    snake->exited = true;
    snake->verdict = *verdict;
    if (snake->why[0] != '\0' && verdict->cause != CAUSE_EXIT && verdict->cause != CAUSE_SIGNAL &&
        verdict->cause != CAUSE_WORKER_DIED)
        (void)snprintf(snake->verdict.error, sizeof snake->verdict.error, "%s%s", snake->why,
                       verdict->forced ? " (killed after the grace period)" : "");
    watchdog_stop(&snake->watchdog);
    if ((snake->waiting & GATES_DRAIN) == 0) { /* both streams have failed already */
        child_empty(copy_child(snake->copy));
        return;
    }
    phase(execution, "draining");
    drain(&snake->streams.out, spec->output_drain_ms);
    drain(&snake->streams.err, spec->output_drain_ms);
}

/* The last line of a traceback is the exception; a copy that breaks down says of what. */
static void explain(struct execution *execution)
{
    struct snake *snake = state_of(execution);
    struct verdict *verdict = &snake->verdict;
    const int most = (int)sizeof verdict->error - 1;

    if (snake->result_bytes > 0 && verdict->cause == CAUSE_EXIT) {
        verdict->cause = CAUSE_LIMIT;
        (void)snprintf(verdict->error, sizeof verdict->error,
                       "the result has %" PRId64 " bytes as JSON, at most %" PRId64
                       " are kept (result_max)",
                       snake->result_bytes, python_runtime(snake->python)->result_max_bytes);
    } else if (snake->channel != NULL && channel_refused(snake->channel) > 0 &&
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
        /* V8 ends its process so when its heap is full; Python's own ends say something first. */
        verdict->cause = CAUSE_OOM;
        (void)snprintf(verdict->error, sizeof verdict->error,
                       "out of memory in the interpreter (SIGABRT)");
    }
}

static void on_empty(void *arg)
{
    struct execution *execution = arg;
    struct snake *snake = state_of(execution);

    if (snake->said_end)
        return;
    if (snake->waiting & GATE_OUT)
        filter_finish(snake->streams.out.filter);
    if (snake->waiting & GATE_ERR)
        filter_finish(snake->streams.err.filter);
    if (snake->waiting & GATE_CHANNEL)
        channel_finish(snake->channel);
    explain(execution);
    open_gate(execution, GATE_TREE);
}

static void on_kill_pending(void *arg)
{
    phase(arg, "kill_pending");
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
    r = job_streams_open(&snake->streams, execution, on_stream_ended);
    if (r < 0) {
        (void)job_streams_close(&snake->streams, NULL, NULL);
        return err_set(err, r, FAULT_HOST, "start job %s", request->id);
    }
    snake->frame_fd = -1;
    snake->asked_ns = clock_mono_ns();
    snake->waiting = GATE_TREE;
    watchdog_init(&snake->watchdog, &snake->streams, on_expired);
    python_ask(snake->python, &snake->ask, &spec->limits, spec->limits_policy, &events, execution);
    return 0;
}

static void suspend(struct execution *execution, bool on)
{
    struct snake *snake = state_of(execution);
    if (snake->copy != NULL)
        child_suspend(copy_child(snake->copy), on);
}

static void sink_ready(struct execution *execution, struct sink *sink, int result,
                       const struct mandor_err *err)
{
    struct snake *snake = state_of(execution);
    struct job_stream *stream = job_streams_by_sink(&snake->streams, sink);

    if (result >= 0) {
        filter_sink_ready(stream->filter);
        return;
    }
    stream->result = result;
    job_streams_fail(&snake->streams, CAUSE_SINK, err);
    if (snake->waiting & gate_of(stream))
        filter_fail(stream->filter, result, err);
    else
        stop(execution, CAUSE_SINK, spec_of(execution)->kill_after_ms, err->msg);
}

static struct job_streams *streams(const struct execution *execution)
{
    return &state_of(execution)->streams;
}

static const char *error(const struct execution *execution)
{
    const struct snake *snake = state_of(execution);
    return snake->verdict.cause == CAUSE_EXIT ? snake->error : NULL;
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

static void on_part_closed(void *arg)
{
    struct execution *execution = arg;
    struct snake *snake = state_of(execution);

    if (--snake->closing > 0)
        return;
    buf_done(&snake->frame);
    free(snake->error);
    execution_closed(execution);
}

static void on_frame_closed(uv_handle_t *handle)
{
    struct execution *execution = handle->data;
    struct snake *snake = state_of(execution);

    if (snake->close_asked)
        on_part_closed(execution);
    else
        snake->closing--;
}

static void close_execution(struct execution *execution)
{
    struct snake *snake = state_of(execution);

    BUG_ON(!snake->ended);
    snake->close_asked = true;
    close_frame(snake);
    snake->closing += 4u + (snake->channel != NULL);
    if (snake->feeder != NULL)
        feeder_close(snake->feeder);
    if (snake->copy != NULL)
        copy_close(snake->copy);
    if (snake->channel != NULL)
        channel_close(snake->channel, on_part_closed, execution);
    (void)job_streams_close(&snake->streams, on_part_closed, execution);
    watchdog_close(&snake->watchdog, on_part_closed, execution);
}

const struct executor_ops executor_python = {
    .name = "python",
    .kind = SPEC_PYTHON,
    .state_size = sizeof(struct snake),
    .start = start,
    .stop = stop,
    .suspend = suspend,
    .sink_ready = sink_ready,
    .streams = streams,
    .error = error,
    .limits_enforced = limits_enforced,
    .containment = containment,
    .close = close_execution,
};
