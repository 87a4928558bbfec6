/* exec_pool.c - executor `pool`: one job, given to a warm worker.
 *
 *   waits for a worker ─▶ given ─▶ chunks through the filters ─▶ RESULT, ERROR or the worker's end ─▶ on_ended
 *                                                                GATE_JOB       GATE_OUT|GATE_ERR
 *
 * A chunk that the filter has no room for waits in `late`, at most as many bytes as the job had credit for; credit is granted
 * when the filter has taken them.  So a slow sink holds back its own stream, and never the socket.
 */
#include <fcntl.h>
#include <stdio.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/deadline.h"
#include "exec/executor_ops.h"
#include "exec/job_streams.h"
#include "exec/watchdog.h"
#include "pool/pool.h"
#include "stream/feeder.h"

#define STDIN_CHUNK ((size_t)64 << 10)

enum gate { GATE_JOB = 1 << 0, GATE_OUT = 1 << 1, GATE_ERR = 1 << 2 };

/* What of one stream has come and is not in its filter. */
struct late {
    struct buf bytes;
    size_t at;
    bool ending; /* no more will come */
    bool ended;  /* the filter knows */
};

struct pooled {
    struct pool_job job;
    struct peer_task task;
    struct job_streams streams;
    struct late late[2]; /* stdout, stderr */
    struct watchdog watchdog;
    uv_timer_t kill; /* the grace after a CANCEL */
    unsigned waiting, closing;
    bool ended, given, stop_asked;
    enum cause stop_cause;
    int64_t kill_at_ms;
    char why[180];
    struct verdict verdict;
    enum spec_containment containment;
    /* stdin: a feeder fills a pipe, which is sent as credit allows. */
    struct feeder *feeder;
    int stdin_fd; /* -1 = none, or ended */
    uv_poll_t stdin_poll;
    bool stdin_open; /* the handle above */
};

static struct pooled *state_of(const struct execution *execution)
{
    return execution_state(execution);
}

static void phase(struct execution *execution, const char *name)
{
    const struct execution_events *events = execution_events(execution);
    if (events->on_phase != NULL)
        events->on_phase(execution_arg(execution), name);
}

/* ---- the end ---- */

static void open_gate(struct execution *execution, unsigned gate)
{
    struct pooled *pooled = state_of(execution);

    pooled->waiting &= ~gate;
    if (pooled->waiting != 0 || pooled->ended)
        return;
    pooled->ended = true;
    job_streams_judge(&pooled->streams, &pooled->verdict);
    execution_events(execution)->on_ended(execution_arg(execution), &pooled->verdict);
}

static void close_stdin(struct pooled *pooled);
static void push(struct execution *execution, bool is_stderr);

/* The worker is through with it, or it with the worker. */
static void finish(struct execution *execution, const struct verdict *verdict)
{
    struct pooled *pooled = state_of(execution);

    pooled->verdict = *verdict;
    if (pooled->stop_asked) { /* what mandor did decides first */
        pooled->verdict.cause = pooled->stop_cause;
        (void)snprintf(pooled->verdict.error, sizeof pooled->verdict.error, "%.179s%s",
                       pooled->why[0] != '\0' ? pooled->why : cause_name(pooled->stop_cause),
                       verdict->forced ? " (its worker was killed after the grace period)" : "");
    }
    watchdog_stop(&pooled->watchdog);
    (void)uv_timer_stop(&pooled->kill);
    close_stdin(pooled);
    for (int i = 0; i < 2; i++) {
        pooled->late[i].ending = true;
        push(execution, i);
    }
    open_gate(execution, GATE_JOB);
}

/* ---- stopping ---- */

static const char *cancel_reason(enum cause cause)
{
    switch (cause) {
    case CAUSE_TIMEOUT:
    case CAUSE_CANCELLED:
    case CAUSE_SHUTDOWN:
    case CAUSE_LOST_LEASE:
        return cause_name(cause);
    case CAUSE_IDLE_TIMEOUT:
        return "timeout";
    default:
        return "cancelled";
    }
}

static void on_grace_over(uv_timer_t *timer)
{
    struct pooled *pooled = state_of(timer->data);
    pool_job_kill(&pooled->job);
}

/* A later call can only shorten the grace. */
static void kill_at(struct pooled *pooled, int64_t grace_ms)
{
    int64_t at_ms = clock_mono_ms() + grace_ms;

    if (pooled->kill_at_ms != 0 && at_ms >= pooled->kill_at_ms)
        return;
    pooled->kill_at_ms = at_ms;
    deadline_start(&pooled->kill, on_grace_over, grace_ms);
}

static void stop(struct execution *execution, enum cause cause, int64_t grace_ms, const char *why)
{
    struct pooled *pooled = state_of(execution);
    bool first = !pooled->stop_asked, over = (pooled->waiting & GATE_JOB) == 0;

    job_streams_stop(&pooled->streams, cause, over ? &pooled->verdict : NULL);
    if (over)
        return;
    if (first) {
        pooled->stop_asked = true;
        pooled->stop_cause = cause;
        (void)snprintf(pooled->why, sizeof pooled->why, "%.*s", (int)sizeof pooled->why - 1,
                       why != NULL ? why : "");
    }
    if (pool_job_withdraw(&pooled->job)) { /* no worker had it: only the sinks are left to end */
        finish(execution, &(struct verdict){ .cause = cause, .exit_code = -1 });
        return;
    }
    if (first) {
        pool_job_cancel(&pooled->job, cancel_reason(cause), grace_ms);
        phase(execution, "stopping");
    }
    kill_at(pooled, grace_ms);
}

static void on_expired(struct execution *execution, enum cause cause, const char *why)
{
    stop(execution, cause, execution_request(execution)->spec->kill_after_ms, why);
}

/* ---- output ---- */

static void on_stream_ended(struct execution *execution, struct job_stream *stream)
{
    struct pooled *pooled = state_of(execution);

    if (stream->result < 0) {
        stop(execution, pooled->streams.cause, execution_request(execution)->spec->kill_after_ms,
             pooled->streams.error.msg);
        /* Nothing more goes there: take and forget, so that the worker is not held up. */
        push(execution, stream->is_stderr);
    }
    open_gate(execution, stream->is_stderr ? GATE_ERR : GATE_OUT);
}

/* Move what is late into the filter; credit for what it took. */
static void push(struct execution *execution, bool is_stderr)
{
    struct pooled *pooled = state_of(execution);
    struct job_stream *stream = job_streams_of(&pooled->streams, is_stderr);
    struct late *late = &pooled->late[is_stderr];
    size_t left = late->bytes.len - late->at;

    if (left > 0) {
        size_t taken =
            stream->ended ? left : filter_feed(stream->filter, late->bytes.data + late->at, left);
        late->at += taken;
        if (late->at == late->bytes.len) {
            buf_done(&late->bytes);
            late->at = 0;
        }
        peer_job_took(&pooled->job.peer, is_stderr, taken);
    }
    if (late->ending && !late->ended && late->bytes.len == 0) {
        late->ended = true;
        if (!stream->ended)
            filter_feed_end(stream->filter);
    }
}

static void on_room_in_filter(void *arg)
{
    struct job_stream *stream = arg;
    push(stream->streams->execution, stream->is_stderr);
}

static void on_chunk(void *arg, bool is_stderr, const void *bytes, size_t len)
{
    struct execution *execution = arg;
    struct pooled *pooled = state_of(execution);
    struct job_stream *stream = job_streams_of(&pooled->streams, is_stderr);
    struct late *late = &pooled->late[is_stderr];
    struct mandor_err err;
    size_t taken = 0;

    if (late->bytes.len == 0) { /* order: what is late comes first */
        taken = stream->ended ? len : filter_feed(stream->filter, bytes, len);
        if (taken > 0)
            peer_job_took(&pooled->job.peer, is_stderr, taken);
    }
    if (taken < len && buf_add(&late->bytes, (const char *)bytes + taken, len - taken) < 0) {
        (void)err_set(&err, -ENOMEM, FAULT_HOST, "keep a worker's output");
        filter_fail(stream->filter, -ENOMEM, &err);
    }
}

static void on_chunk_end(void *arg, bool is_stderr)
{
    struct pooled *pooled = state_of(arg);

    pooled->late[is_stderr].ending = true;
    push(arg, is_stderr);
}

/* ---- input ---- */

static void on_stdin_poll_closed(uv_handle_t *handle);

static void close_stdin(struct pooled *pooled)
{
    if (pooled->feeder != NULL)
        feeder_close(pooled->feeder);
    pooled->feeder = NULL;
    if (pooled->stdin_fd < 0)
        return;
    /* With its descriptor, see stop_io() of peer.c. */
    uv_close((uv_handle_t *)&pooled->stdin_poll, on_stdin_poll_closed);
    (void)close(STEAL_FD(pooled->stdin_fd));
}

static void on_stdin_readable(uv_poll_t *poll, int status, int events)
{
    struct pooled *pooled = state_of(poll->data);
    char bytes[STDIN_CHUNK];

    (void)status, (void)events;
    size_t room = MIN(peer_job_room(&pooled->job.peer), sizeof bytes);
    if (room == 0) {
        (void)uv_poll_stop(poll); /* on_room goes on */
        return;
    }
    ssize_t n = RETRY_EINTR(read(pooled->stdin_fd, bytes, room));
    if (n < 0)
        return; /* -EAGAIN: a pipe has no other */
    peer_job_stdin(&pooled->job.peer, bytes, (size_t)n, n == 0);
    if (n == 0)
        close_stdin(pooled);
}

static void on_room(void *arg)
{
    struct pooled *pooled = state_of(arg);

    if (pooled->stdin_fd >= 0 && peer_job_room(&pooled->job.peer) > 0)
        (void)uv_poll_start(&pooled->stdin_poll, UV_READABLE, on_stdin_readable);
}

static void on_fed(void *arg, int result, const struct mandor_err *err)
{
    struct execution *execution = arg;

    if (result >= 0)
        return; /* the pipe's end of file says the rest */
    job_streams_fail(&state_of(execution)->streams, CAUSE_SINK, err);
    stop(execution, CAUSE_SINK, execution_request(execution)->spec->kill_after_ms, err->msg);
}

static int open_stdin(struct execution *execution, struct mandor_err *err)
{
    const struct execution_request *request = execution_request(execution);
    struct pooled *pooled = state_of(execution);
    int pair[2];

    if (pipe2(pair, O_CLOEXEC | O_NONBLOCK) < 0)
        return err_set(err, -errno, FAULT_HOST, "make a pipe for stdin");
    int r = uv_poll_init(request->env->loop, &pooled->stdin_poll, pair[0]);
    if (r < 0) {
        (void)close(pair[0]);
        (void)close(pair[1]);
        return err_set(err, r, FAULT_HOST, "watch stdin");
    }
    pooled->stdin_poll.data = execution;
    pooled->stdin_open = true;
    pooled->stdin_fd = pair[0];
    return feeder_start(request->env->loop, request->spec->stdin_src.bytes, pair[1], on_fed,
                        execution, &pooled->feeder, err);
}

/* ---- the job's other events ---- */

static void on_given(void *arg, pid_t pid, const char *slot, enum spec_containment containment)
{
    struct execution *execution = arg;
    struct pooled *pooled = state_of(execution);
    const struct execution_events *events = execution_events(execution);
    struct mandor_err err;

    pooled->containment = containment;
    watchdog_start(&pooled->watchdog);
    if (pooled->task.has_stdin && !pooled->given && open_stdin(execution, &err) < 0)
        on_fed(execution, err.code, &err);
    pooled->given = true;
    on_room(execution);
    if (events->on_running != NULL)
        events->on_running(execution_arg(execution), pid, slot, spec_containment_name(containment));
}

static void on_progress(void *arg, json_t *value)
{
    struct execution *execution = arg;
    struct pooled *pooled = state_of(execution);

    pooled->streams.active_at_ms = clock_mono_ms();
    execution_keep_progress(execution, value);
}

static void on_log(void *arg, const char *text)
{
    struct execution *execution = arg;
    const struct execution_events *events = execution_events(execution);

    state_of(execution)->streams.active_at_ms = clock_mono_ms();
    if (events->on_log != NULL)
        events->on_log(execution_arg(execution), text);
}

/* ERROR as an exit code (doc/pool-protocol.md). */
static int exit_code_of(const json_t *error)
{
    json_int_t code = json_integer_value(json_object_get(error, "code"));

    if (code >= 1 && code <= 255)
        return (int)code;
    return json_is_false(json_object_get(error, "retry")) ? 100 : 1;
}

/* Where it happened, at the end of the job's stderr: an interpreter that is started for one job prints it there as well. */
static void keep_traceback(struct execution *execution, const json_t *error)
{
    const json_t *traceback = json_object_get(error, "traceback");
    size_t len = json_string_length(traceback);

    if (len == 0 || state_of(execution)->late[1].ending)
        return;
    on_chunk(execution, true, json_string_value(traceback), len);
    if (json_string_value(traceback)[len - 1] != '\n')
        on_chunk(execution, true, "\n", 1);
}

static void on_done(void *arg, json_t *result, json_t *error)
{
    struct execution *execution = arg;
    struct verdict verdict = { .cause = CAUSE_EXIT };

    if (error == NULL) {
        execution_keep_result(execution, result);
    } else {
        verdict.exit_code = exit_code_of(error);
        keep_traceback(execution, error);
        const char *message = json_string_value(json_object_get(error, "message"));
        int limit = (int)sizeof verdict.error - 1;
        /* Cut between characters. */
        while (limit > 0 && (message[strnlen(message, (size_t)limit)] & 0xc0) == 0x80)
            limit--;
        (void)snprintf(verdict.error, sizeof verdict.error, "%.*s", limit, message);
    }
    finish(execution, &verdict);
}

static void on_lost(void *arg, const struct verdict *verdict)
{
    finish(arg, verdict);
}

/* ---- the ops ---- */

static int start(struct execution *execution, struct mandor_err *err)
{
    static const struct pool_job_events events = {
        .on_given = on_given,
        .on_chunk = on_chunk,
        .on_chunk_end = on_chunk_end,
        .on_room = on_room,
        .on_progress = on_progress,
        .on_log = on_log,
        .on_done = on_done,
        .on_lost = on_lost,
    };
    const struct execution_request *request = execution_request(execution);
    const struct spec *spec = request->spec;
    struct pooled *pooled = state_of(execution);
    struct pool *pool = pools_find(request->env->pools, spec->pool, err);

    if (pool == NULL)
        return -EOPNOTSUPP;
    int r = job_streams_open(&pooled->streams, execution, on_stream_ended);
    if (r < 0) {
        (void)job_streams_close(&pooled->streams, NULL, NULL);
        return err_set(err, r, FAULT_HOST, "start job %s", request->id);
    }
    filter_on_room(pooled->streams.out.filter, on_room_in_filter);
    filter_on_room(pooled->streams.err.filter, on_room_in_filter);
    watchdog_init(&pooled->watchdog, &pooled->streams, on_expired);
    (void)uv_timer_init(request->env->loop, &pooled->kill);
    pooled->kill.data = execution;
    pooled->stdin_fd = -1;
    pooled->waiting = GATE_JOB | GATE_OUT | GATE_ERR;
    pooled->task = (struct peer_task){ .id = request->id,
                                       .queue = request->queue,
                                       .attempt = request->attempt,
                                       .data = spec->data,
                                       .timeout_ms = spec->timeout_ms,
                                       .has_stdin = spec->stdin_src.bytes != NULL };
    pool_submit(pool, &pooled->job, &pooled->task, &events, execution);
    return 0;
}

static void sink_ready(struct execution *execution, struct sink *sink, int result,
                       const struct mandor_err *err)
{
    struct job_stream *stream = job_streams_by_sink(&state_of(execution)->streams, sink);

    if (result >= 0)
        filter_sink_ready(stream->filter);
    else if (!stream->ended)
        filter_fail(stream->filter, result, err);
}

static struct job_streams *streams(const struct execution *execution)
{
    return &state_of(execution)->streams;
}

static json_t *limits_enforced(const struct execution *execution)
{
    (void)execution;
    return NULL; /* limits are the pool's, not the job's */
}

static const char *containment(const struct execution *execution)
{
    const struct pooled *pooled = state_of(execution);
    return pooled->given ? spec_containment_name(pooled->containment) : NULL;
}

static void on_part_closed(void *arg)
{
    struct execution *execution = arg;
    struct pooled *pooled = state_of(execution);

    if (--pooled->closing > 0)
        return;
    buf_done(&pooled->late[0].bytes);
    buf_done(&pooled->late[1].bytes);
    execution_closed(execution);
}

static void on_timer_closed(uv_handle_t *handle)
{
    on_part_closed(handle->data);
}

static void on_stdin_poll_closed(uv_handle_t *handle)
{
    struct execution *execution = handle->data;
    struct pooled *pooled = state_of(execution);

    pooled->stdin_open = false;
    if (pooled->closing > 0)
        on_part_closed(execution);
}

static void close_execution(struct execution *execution)
{
    struct pooled *pooled = state_of(execution);

    BUG_ON(!pooled->ended);
    close_stdin(pooled);
    /* Two filters, the watchdog's two timers, kill, stdin. */
    pooled->closing = 5u + pooled->stdin_open;
    (void)job_streams_close(&pooled->streams, on_part_closed, execution);
    watchdog_close(&pooled->watchdog, on_part_closed, execution);
    uv_close((uv_handle_t *)&pooled->kill, on_timer_closed);
}

const struct executor_ops executor_pool = {
    .name = "pool",
    .kind = SPEC_POOL,
    .state_size = sizeof(struct pooled),
    .start = start,
    .stop = stop,
    .sink_ready = sink_ready,
    .streams = streams,
    .limits_enforced = limits_enforced,
    .containment = containment,
    .close = close_execution,
};
