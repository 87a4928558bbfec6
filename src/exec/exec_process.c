/* exec_process.c - executor `exec`: one job, one supervised process tree.
 *
 * Bytes and state meet here, and only to be counted: an attempt has ended when every gate is open.
 *
 *   leader reaped ─▶ drain both pipes ─▶ empty the containment ─▶ finish pipes and channel ─▶ on_ended
 *   GATE_DRAIN_OUT|GATE_DRAIN_ERR        GATE_TREE                GATE_OUT|GATE_ERR|GATE_CHANNEL
 */
#include <stdio.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/log.h"
#include "child/child.h"
#include "exec/channel.h"
#include "exec/executor_ops.h"
#include "exec/job_streams.h"
#include "exec/watchdog.h"
#include "stream/feeder.h"

#define DRAIN_IDLE_MS 500

enum gate {
    GATE_DRAIN_OUT = 1 << 0,
    GATE_DRAIN_ERR = 1 << 1,
    GATE_TREE = 1 << 2,
    GATE_OUT = 1 << 3,
    GATE_ERR = 1 << 4,
    GATE_CHANNEL = 1 << 5,
    GATES_DRAIN = GATE_DRAIN_OUT | GATE_DRAIN_ERR,
    GATES_STREAMS = GATE_OUT | GATE_ERR,
};

struct process {
    struct child *child;
    struct job_streams streams;
    struct feeder *feeder;
    struct channel *channel;
    struct watchdog watchdog;
    unsigned waiting; /* gates that are still shut */
    unsigned closing; /* handles that are still open, at the end */
    bool exited, ended;
    struct verdict verdict;
    char why[200]; /* why mandor stopped it, for the record */
    /* What child_start() borrows until the process runs. */
    char **argv, **envp;
    char **env_owned; /* the entries of envp that are ours */
    char label[128];
};

static struct process *state_of(const struct execution *execution)
{
    return execution_state(execution);
}

static void phase(struct execution *execution, const char *name)
{
    const struct execution_events *events = execution_events(execution);
    if (events->on_phase != NULL)
        events->on_phase(execution_arg(execution), name);
}

/* ---- the end: gates ---- */

static void free_vectors(struct process *process)
{
    for (char **p = process->env_owned; p != NULL && *p != NULL; p++)
        free(*p);
    free(process->env_owned);
    free(process->envp);
    free(process->argv);
    process->env_owned = process->envp = process->argv = NULL;
}

static void try_end(struct execution *execution)
{
    struct process *process = state_of(execution);

    if (process->waiting != 0 || process->ended)
        return;
    process->ended = true;
    process->verdict.descendants_killed = child_descendants_killed(process->child);
    job_streams_judge(&process->streams, &process->verdict);
    execution_events(execution)->on_ended(execution_arg(execution), &process->verdict);
}

static void open_gate(struct execution *execution, unsigned gates)
{
    struct process *process = state_of(execution);
    bool was_draining = (process->waiting & GATES_DRAIN) != 0;

    process->waiting &= ~gates;
    if (process->exited && was_draining && (process->waiting & GATES_DRAIN) == 0)
        child_empty(process->child);
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
    struct process *process = state_of(execution);

    if (stream->result < 0)
        child_stop(process->child, process->streams.cause,
                   execution_request(execution)->spec->kill_after_ms);
    open_gate(execution, gate_of(stream) | drain_gate_of(stream));
}

static void on_drained(void *arg)
{
    struct job_stream *stream = arg;
    open_gate(stream->streams->execution, drain_gate_of(stream));
}

/* ---- the channel ---- */

static void on_value(void *arg, const char *kind, json_t *value)
{
    struct execution *execution = arg;
    const struct execution_events *events = execution_events(execution);

    if (str_eq(kind, "result")) {
        execution_keep_result(execution, value);
    } else if (str_eq(kind, "progress")) {
        execution_keep_progress(execution, value);
    } else if (str_eq(kind, "again")) {
        if (events->on_again != NULL)
            events->on_again(execution_arg(execution), value);
    } else if (str_eq(kind, "data")) {
        if (events->on_data != NULL)
            events->on_data(execution_arg(execution), value);
    } else if (events->on_log != NULL && json_is_string(value)) {
        events->on_log(execution_arg(execution), json_string_value(value));
    }
}

static void on_channel_activity(void *arg)
{
    state_of(arg)->streams.active_at_ms = clock_mono_ms();
}

static void on_channel_ended(void *arg)
{
    open_gate(arg, GATE_CHANNEL);
}

/* ---- stopping ---- */

static void stop(struct execution *execution, enum cause cause, int64_t grace_ms, const char *why)
{
    struct process *process = state_of(execution);

    if (why != NULL && process->why[0] == '\0')
        (void)snprintf(process->why, sizeof process->why, "%.*s", (int)sizeof process->why - 1,
                       why);
    child_stop(process->child, cause, grace_ms);
    if (!process->ended)
        phase(execution, "stopping");
}

static void on_expired(struct execution *execution, enum cause cause, const char *why)
{
    stop(execution, cause, execution_request(execution)->spec->kill_after_ms, why);
}

/* ---- the child ---- */

static void on_fed(void *arg, int result, const struct mandor_err *err)
{
    struct execution *execution = arg;

    if (result < 0) {
        job_streams_fail(&state_of(execution)->streams, CAUSE_SINK, err);
        stop(execution, CAUSE_SINK, execution_request(execution)->spec->kill_after_ms, err->msg);
    }
}

static void adopt(struct job_stream *stream, int fd)
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

static void start_channel(struct execution *execution, int fd)
{
    static const struct channel_events events = { .on_value = on_value,
                                                  .on_activity = on_channel_activity,
                                                  .on_ended = on_channel_ended };
    struct process *process = state_of(execution);

    if (channel_new(execution_request(execution)->env->loop, fd, &events, execution,
                    &process->channel) < 0)
        process->waiting &= ~(unsigned)GATE_CHANNEL; /* the job runs on without being heard */
}

static void start_feeder(struct execution *execution, int fd)
{
    const struct execution_request *request = execution_request(execution);
    struct process *process = state_of(execution);
    struct mandor_err err;

    if (feeder_start(request->env->loop, request->spec->stdin_src.bytes, fd, on_fed, execution,
                     &process->feeder, &err) < 0)
        on_fed(execution, err.code, &err);
}

static void on_spawned(struct child *child, pid_t pid, const struct child_pipes *pipes, void *arg)
{
    struct execution *execution = arg;
    struct process *process = state_of(execution);
    const struct execution_events *events = execution_events(execution);

    process->child = child;
    free_vectors(process);
    process->waiting |= GATES_STREAMS | GATES_DRAIN | GATE_CHANNEL;
    watchdog_start(&process->watchdog);
    adopt(&process->streams.out, pipes->out);
    adopt(&process->streams.err, pipes->err);
    start_channel(execution, pipes->channel);
    if (pipes->in >= 0)
        start_feeder(execution, pipes->in);
    if (events->on_running != NULL)
        events->on_running(execution_arg(execution), pid, child_slot(child),
                           spec_containment_name(child_containment(child)));
}

static void drain(struct job_stream *stream, int64_t cap_ms)
{
    struct process *process = state_of(stream->streams->execution);
    if (process->waiting & drain_gate_of(stream))
        filter_drain(stream->filter, DRAIN_IDLE_MS, cap_ms, on_drained);
}

static void on_exited(struct child *child, const struct verdict *verdict, void *arg)
{
    struct execution *execution = arg;
    struct process *process = state_of(execution);
    const struct spec *spec = execution_request(execution)->spec;

    process->child = child;
    process->exited = true;
    process->verdict = *verdict;
    if (process->why[0] != '\0' && verdict->cause != CAUSE_EXIT && verdict->cause != CAUSE_SIGNAL &&
        verdict->cause != CAUSE_SPAWN)
        (void)snprintf(process->verdict.error, sizeof process->verdict.error, "%s%s", process->why,
                       verdict->forced ? " (killed after the grace period)" : "");
    watchdog_stop(&process->watchdog);
    free_vectors(process);
    if ((process->waiting & GATES_DRAIN) ==
        0) { /* it never ran, or both streams have failed already */
        child_empty(child);
        return;
    }
    phase(execution, "draining");
    drain(&process->streams.out, spec->output_drain_ms);
    drain(&process->streams.err, spec->output_drain_ms);
}

static void on_empty(struct child *child, void *arg)
{
    struct execution *execution = arg;
    struct process *process = state_of(execution);

    (void)child;
    if (process->waiting & GATE_OUT)
        filter_finish(process->streams.out.filter);
    if (process->waiting & GATE_ERR)
        filter_finish(process->streams.err.filter);
    if (process->waiting & GATE_CHANNEL)
        channel_finish(process->channel);
    open_gate(execution, GATE_TREE);
}

static void on_kill_pending(struct child *child, void *arg)
{
    (void)child;
    phase(arg, "kill_pending");
}

/* ---- what is started ---- */

static bool names_same(const char *a, const char *b)
{
    size_t len = strcspn(a, "=");
    return strncmp(a, b, len + 1) == 0;
}

static bool overridden(const struct spec *spec, const char *entry)
{
    for (size_t i = 0; i < spec->env_count; i++)
        if (names_same(entry, spec->env[i].bytes))
            return true;
    return false;
}

static int add_owned(struct process *process, size_t *count, const char *name, const char *value)
{
    SCOPED_BUF text = { 0 };

    if (buf_addf(&text, "%s=%s", name, value) < 0)
        return -ENOMEM;
    process->env_owned[*count] = buf_steal(&text);
    return process->env_owned[(*count)++] != NULL ? 0 : -ENOMEM;
}

/* envp: the worker's passed-on variables, then the job's own over them, then MANDOR_*. */
static int make_env(struct process *process, const struct execution_request *request)
{
    const struct spec *spec = request->spec;
    size_t passed = 0, count = 0, owned = 0;
    char attempt[24];

    while (request->env->env_pass[passed] != NULL)
        passed++;
    process->envp = calloc(passed + spec->env_count + 4, sizeof *process->envp);
    process->env_owned = calloc(4, sizeof *process->env_owned);
    if (process->envp == NULL || process->env_owned == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < passed; i++)
        if (!overridden(spec, request->env->env_pass[i]))
            process->envp[count++] = request->env->env_pass[i];
    for (size_t i = 0; i < spec->env_count; i++)
        process->envp[count++] = spec->env[i].bytes;

    (void)snprintf(attempt, sizeof attempt, "%" PRId64, request->attempt);
    if (add_owned(process, &owned, "MANDOR_JOB_ID", request->id) < 0 ||
        add_owned(process, &owned, "MANDOR_ATTEMPT", attempt) < 0 ||
        add_owned(process, &owned, "MANDOR_QUEUE", request->queue) < 0)
        return -ENOMEM;
    for (size_t i = 0; i < owned; i++)
        process->envp[count++] = process->env_owned[i];
    return 0;
}

static int make_argv(struct process *process, const struct spec *spec)
{
    process->argv = calloc(spec->argc + 1, sizeof *process->argv);
    if (process->argv == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < spec->argc; i++)
        process->argv[i] = spec->argv[i].bytes;
    return 0;
}

/* A file name for directories and logs, whatever characters a broker's ids have. */
static void make_label(struct process *process, const struct execution_request *request)
{
    (void)snprintf(process->label, sizeof process->label, "%.100s.%" PRId64, request->id,
                   request->attempt);
    for (char *p = process->label; *p != '\0'; p++)
        if (*p == '/' || (unsigned char)*p < ' ')
            *p = '_';
}

static int launch(struct execution *execution)
{
    static const struct child_events events = { .on_spawned = on_spawned,
                                                .on_exited = on_exited,
                                                .on_empty = on_empty,
                                                .on_kill_pending = on_kill_pending };
    const struct execution_request *request = execution_request(execution);
    struct process *process = state_of(execution);
    const struct spec *spec = request->spec;
    bool has_stdin = spec->stdin_src.bytes != NULL;
    struct child_launch launch = {
        .label = process->label,
        .argv = process->argv,
        .envp = process->envp,
        .cwd = spec->cwd.bytes,
        .user = spec->user,
        .group = spec->group,
        .no_new_privs = spec->no_new_privs,
        .want_stdin = has_stdin,
        .inherit_stdin = !has_stdin && request->inherit_stdin,
        .want_channel = true,
        .stdout_fd = -1,
        .stderr_fd = -1,
        .limits = spec->limits,
        .limits_policy = spec->limits_policy,
        .containment = spec->containment,
    };

    return child_start(request->env->nursery, &launch, &events, execution, &process->child);
}

/* ---- the ops ---- */

static int start(struct execution *execution, struct mandor_err *err)
{
    const struct execution_request *request = execution_request(execution);
    struct process *process = state_of(execution);
    int r;

    make_label(process, request);
    r = make_argv(process, request->spec);
    if (r == 0)
        r = make_env(process, request);
    if (r == 0)
        r = job_streams_open(&process->streams, execution, on_stream_ended);
    process->waiting = GATE_TREE;
    if (r == 0)
        r = launch(execution);
    if (r < 0) {
        free_vectors(process);
        (void)job_streams_close(&process->streams, NULL, NULL);
        return err_set(err, r, FAULT_HOST, "start job %s", request->id);
    }
    watchdog_init(&process->watchdog, &process->streams, on_expired);
    return 0;
}

static void suspend(struct execution *execution, bool on)
{
    child_suspend(state_of(execution)->child, on);
}

static void sink_ready(struct execution *execution, struct sink *sink, int result,
                       const struct mandor_err *err)
{
    struct process *process = state_of(execution);
    const struct execution_request *request = execution_request(execution);
    struct job_stream *stream = job_streams_by_sink(&process->streams, sink);

    if (result >= 0) {
        filter_sink_ready(stream->filter);
        return;
    }
    stream->result = result;
    job_streams_fail(&process->streams, CAUSE_SINK, err);
    if (process->waiting & gate_of(stream))
        filter_fail(stream->filter, result, err);
    else
        stop(execution, CAUSE_SINK, request->spec->kill_after_ms, err->msg); /* not spawned yet */
}

static struct job_streams *streams(const struct execution *execution)
{
    return &state_of(execution)->streams;
}

static json_t *limits_enforced(const struct execution *execution)
{
    return child_limits_enforced(state_of(execution)->child);
}

static const char *containment(const struct execution *execution)
{
    return spec_containment_name(child_containment(state_of(execution)->child));
}

static void on_part_closed(void *arg)
{
    struct execution *execution = arg;
    struct process *process = state_of(execution);

    if (--process->closing > 0)
        return;
    execution_closed(execution);
}

static void close_execution(struct execution *execution)
{
    struct process *process = state_of(execution);

    BUG_ON(!process->ended);
    process->closing = 4 + (process->channel != NULL);
    if (process->feeder != NULL)
        feeder_close(process->feeder);
    child_close(process->child);
    if (process->channel != NULL)
        channel_close(process->channel, on_part_closed, execution);
    (void)job_streams_close(&process->streams, on_part_closed, execution);
    watchdog_close(&process->watchdog, on_part_closed, execution);
}

const struct executor_ops executor_process = {
    .name = "exec",
    .kind = SPEC_EXEC,
    .state_size = sizeof(struct process),
    .start = start,
    .stop = stop,
    .suspend = suspend,
    .sink_ready = sink_ready,
    .streams = streams,
    .limits_enforced = limits_enforced,
    .containment = containment,
    .close = close_execution,
};
