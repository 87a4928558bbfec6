/* job_tree.c - contract in job_tree.h. */
#include "exec/job_tree.h"

#include <stdio.h>

#include "base/clock.h"

#define DRAIN_IDLE_MS 500

enum gate {
    GATE_DRAIN_OUT = 1 << 0,
    GATE_DRAIN_ERR = 1 << 1,
    GATE_TREE = 1 << 2, /* nothing of it is alive, or there never was one */
    GATE_OUT = 1 << 3,
    GATE_ERR = 1 << 4,
    GATE_CHANNEL = 1 << 5,
    GATES_DRAIN = GATE_DRAIN_OUT | GATE_DRAIN_ERR,
};

static struct job_tree *tree_of(const struct execution *execution)
{
    return execution_state(execution);
}

static const struct spec *spec_of(const struct execution *execution)
{
    return execution_request(execution)->spec;
}

void job_tree_phase(struct execution *execution, const char *phase)
{
    const struct execution_events *events = execution_events(execution);
    if (events->on_phase != NULL)
        events->on_phase(execution_arg(execution), phase);
}

/* ---- the end: gates ---- */

static void try_end(struct execution *execution)
{
    struct job_tree *tree = tree_of(execution);

    if (tree->waiting != 0 || tree->ended)
        return;
    tree->ended = true;
    if (tree->child != NULL)
        tree->verdict.descendants_killed = child_descendants_killed(tree->child);
    if (tree->on_last != NULL)
        tree->on_last(execution);
    job_streams_judge(&tree->streams, &tree->verdict);
    execution_events(execution)->on_ended(execution_arg(execution), &tree->verdict);
}

static void open_gate(struct execution *execution, unsigned gates)
{
    struct job_tree *tree = tree_of(execution);
    bool was_draining = (tree->waiting & GATES_DRAIN) != 0;

    tree->waiting &= ~gates;
    if (tree->exited && was_draining && (tree->waiting & GATES_DRAIN) == 0)
        child_empty(tree->child);
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

/* One whose sink was given up while the job was still being started has ended already. */
static unsigned gates_of(const struct job_stream *stream)
{
    return stream->ended ? 0 : gate_of(stream) | drain_gate_of(stream);
}

static void stop_of(struct execution *execution, const struct job_stream *stream)
{
    struct job_tree *tree = tree_of(execution);

    if (stream->result < 0 && tree->child != NULL)
        child_stop(tree->child, tree->streams.cause, spec_of(execution)->kill_after_ms);
}

static void on_stream_ended(struct execution *execution, struct job_stream *stream)
{
    stop_of(execution, stream);
    open_gate(execution, gate_of(stream) | drain_gate_of(stream));
}

static void on_drained(void *arg)
{
    struct job_stream *stream = arg;
    open_gate(stream->streams->execution, drain_gate_of(stream));
}

static void drain(struct execution *execution, struct job_stream *stream)
{
    if (tree_of(execution)->waiting & drain_gate_of(stream))
        filter_drain(stream->filter, DRAIN_IDLE_MS, spec_of(execution)->output_drain_ms,
                     on_drained);
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

static void on_fed(void *arg, int result, const struct mandor_err *err)
{
    struct execution *execution = arg;

    if (result < 0) {
        job_streams_fail(&tree_of(execution)->streams, CAUSE_SINK, err);
        execution_stop(execution, CAUSE_SINK, -1, err->msg);
    }
}

static void start_feeder(struct execution *execution, int fd)
{
    const struct execution_request *request = execution_request(execution);
    const char *url = request->spec->stdin_src.bytes;
    struct mandor_err err;

    if (fd >= 0 && url == NULL)
        (void)close(fd); /* reading it is the end of file */
    else if (fd >= 0 && feeder_start(request->env->loop, url, fd, on_fed, execution,
                                     &tree_of(execution)->feeder, &err) < 0)
        on_fed(execution, err.code, &err);
}

/* ---- the channel ---- */

void job_tree_heard(void *execution)
{
    tree_of(execution)->streams.active_at_ms = clock_mono_ms();
}

void job_tree_unheard(void *execution)
{
    open_gate(execution, GATE_CHANNEL);
}

/* ---- its life ---- */

static void on_expired(struct execution *execution, enum cause cause, const char *why)
{
    execution_stop(execution, cause, -1, why);
}

int job_tree_open(struct execution *execution, void (*on_last)(struct execution *execution))
{
    struct job_tree *tree = tree_of(execution);

    tree->on_last = on_last;
    tree->waiting = GATE_TREE;
    return job_streams_open(&tree->streams, execution, on_stream_ended);
}

void job_tree_run(struct execution *execution, struct child *child, const struct child_pipes *pipes,
                  const struct channel_events *channel)
{
    struct job_tree *tree = tree_of(execution);
    const struct execution_events *events = execution_events(execution);

    tree->child = child;
    tree->ran = true;
    tree->waiting |= gates_of(&tree->streams.out) | gates_of(&tree->streams.err) | GATE_CHANNEL;
    watchdog_init(&tree->watchdog, &tree->streams, on_expired);
    watchdog_start(&tree->watchdog);
    adopt_pipe(&tree->streams.out, pipes->out);
    adopt_pipe(&tree->streams.err, pipes->err);
    if (channel_new(execution_request(execution)->env->loop, pipes->channel, channel, execution,
                    &tree->channel) < 0)
        tree->waiting &= ~(unsigned)GATE_CHANNEL; /* the job runs on without being heard */
    start_feeder(execution, pipes->in);
    stop_of(execution, &tree->streams.out);
    stop_of(execution, &tree->streams.err);
    if (events->on_running != NULL)
        events->on_running(execution_arg(execution), child_pid(child), child_slot(child),
                           spec_containment_name(child_containment(child)));
}

void job_tree_exited(struct execution *execution, const struct verdict *verdict)
{
    struct job_tree *tree = tree_of(execution);
    bool own = verdict->cause == CAUSE_EXIT || verdict->cause == CAUSE_SIGNAL ||
               verdict->cause == CAUSE_SPAWN || verdict->cause == CAUSE_WORKER_DIED;

    tree->exited = true;
    tree->verdict = *verdict;
    if (tree->why[0] != '\0' && !own)
        (void)snprintf(tree->verdict.error, sizeof tree->verdict.error, "%s%s", tree->why,
                       verdict->forced ? " (killed after the grace period)" : "");
    if (tree->ran)
        watchdog_stop(&tree->watchdog);
    /* It never ran, or both streams have failed already. */
    if ((tree->waiting & GATES_DRAIN) == 0) {
        child_empty(tree->child);
        return;
    }
    job_tree_phase(execution, "draining");
    drain(execution, &tree->streams.out);
    drain(execution, &tree->streams.err);
}

void job_tree_empty(struct execution *execution)
{
    struct job_tree *tree = tree_of(execution);

    if (tree->ran)
        watchdog_stop(&tree->watchdog);
    if (tree->waiting & GATE_OUT)
        filter_finish(tree->streams.out.filter);
    if (tree->waiting & GATE_ERR)
        filter_finish(tree->streams.err.filter);
    if (tree->waiting & GATE_CHANNEL)
        channel_finish(tree->channel);
    open_gate(execution, GATES_DRAIN | GATE_TREE);
}

void job_tree_unrun(struct execution *execution, const struct verdict *verdict)
{
    tree_of(execution)->verdict = *verdict;
    open_gate(execution, GATE_TREE);
}

/* ---- the ops ---- */

void job_tree_stop(struct execution *execution, enum cause cause, int64_t grace_ms, const char *why)
{
    struct job_tree *tree = tree_of(execution);

    if (why != NULL && tree->why[0] == '\0')
        (void)snprintf(tree->why, sizeof tree->why, "%.*s", (int)sizeof tree->why - 1, why);
    if (tree->child != NULL)
        child_stop(tree->child, cause, grace_ms);
    bool over = tree->exited || (tree->ran && tree->child == NULL);
    job_streams_stop(&tree->streams, cause, over ? &tree->verdict : NULL);
    if (!tree->ended)
        job_tree_phase(execution, "stopping");
}

void job_tree_suspend(struct execution *execution, bool on)
{
    struct job_tree *tree = tree_of(execution);
    if (tree->child != NULL)
        child_suspend(tree->child, on);
}

void job_tree_sink_ready(struct execution *execution, struct sink *sink, int result,
                         const struct mandor_err *err)
{
    struct job_tree *tree = tree_of(execution);
    struct job_stream *stream = job_streams_by_sink(&tree->streams, sink);

    if (result >= 0) {
        filter_sink_ready(stream->filter);
        return;
    }
    stream->result = result;
    job_streams_fail(&tree->streams, CAUSE_SINK, err);
    if (tree->waiting & gate_of(stream))
        filter_fail(stream->filter, result, err);
    else
        execution_stop(execution, CAUSE_SINK, -1, err->msg); /* it does not run yet */
}

struct job_streams *job_tree_streams(const struct execution *execution)
{
    return &tree_of(execution)->streams;
}

static void on_part_closed(void *arg)
{
    struct execution *execution = arg;
    struct job_tree *tree = tree_of(execution);

    if (--tree->closing == 0)
        tree->on_closed(execution);
}

void job_tree_close(struct execution *execution, void (*on_closed)(struct execution *execution))
{
    struct job_tree *tree = tree_of(execution);

    BUG_ON(!tree->ended);
    tree->on_closed = on_closed;
    tree->closing = 2 + (tree->ran ? 2 : 0) + (tree->channel != NULL);
    if (tree->feeder != NULL)
        feeder_close(tree->feeder);
    if (tree->channel != NULL)
        channel_close(tree->channel, on_part_closed, execution);
    (void)job_streams_close(&tree->streams, on_part_closed, execution);
    if (tree->ran)
        watchdog_close(&tree->watchdog, on_part_closed, execution);
}
