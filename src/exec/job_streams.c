/* job_streams.c - contract in job_streams.h. */
#include "exec/job_streams.h"

#include <stdio.h>

#include "base/clock.h"
#include "exec/outputs.h"

#define AUTO_OUTPUT_MAX \
    (INT64_C(1) << 30) /* bytes: they fill mandor's own directory (as in options.def) */

#define UNWANTED_MS 1000 /* the patience with a sink after a stop: nothing of it is to be seen, */
#define WANTED_MS   5000 /* or all of it */

static void on_activity(void *arg)
{
    struct job_stream *stream = arg;
    stream->streams->active_at_ms = clock_mono_ms();
}

static enum cause cause_of(int result)
{
    switch (result) {
    case -EPROTO:
        return CAUSE_PROTOCOL;
    case -EFBIG:
        return CAUSE_LIMIT;
    default:
        return CAUSE_SINK;
    }
}

static void on_filter_ended(void *arg, int result, const struct mandor_err *err)
{
    struct job_stream *stream = arg;
    struct job_streams *streams = stream->streams;

    stream->ended = true;
    if (result < 0) {
        stream->result = result;
        job_streams_fail(streams,
                         result == -ETIMEDOUT && streams->stopped == CAUSE_SHUTDOWN
                             ? CAUSE_SHUTDOWN
                             : cause_of(result),
                         err);
    }
    streams->on_ended(streams->execution, stream);
}

static int open_one(struct job_streams *streams, struct job_stream *stream, bool is_stderr)
{
    const struct execution_request *request = execution_request(streams->execution);
    const struct spec *spec = request->spec;
    struct sink *sink = is_stderr ? request->err : request->out;
    static const struct filter_events events = { .on_activity = on_activity,
                                                 .on_ended = on_filter_ended };
    struct filter_options options = {
        .frame = is_stderr && spec->frame != FRAME_RAW ? FRAME_LINES : spec->frame,
        .frame_max = (size_t)spec->frame_max_bytes,
        .checksum = spec->checksum == CHECKSUM_XXH3,
        .capture = (spec->capture & (is_stderr ? CAPTURE_STDERR : CAPTURE_STDOUT)) != 0,
        .output_max = spec->output_max_bytes,
        .output_policy = spec->output_policy,
        .sink_timeout_ms = spec->sink_timeout_ms,
    };

    if (options.output_max == 0 && str_eq(sink_kind(sink), "auto"))
        options.output_max = AUTO_OUTPUT_MAX;
    *stream = (struct job_stream){ .streams = streams, .is_stderr = is_stderr };
    return filter_new(request->env->filters, &options, sink, &events, stream, &stream->filter);
}

int job_streams_open(struct job_streams *streams, struct execution *execution,
                     void (*on_ended)(struct execution *execution, struct job_stream *stream))
{
    *streams = (struct job_streams){ .execution = execution, .on_ended = on_ended };
    int r = open_one(streams, &streams->out, false);
    return r < 0 ? r : open_one(streams, &streams->err, true);
}

struct job_stream *job_streams_of(struct job_streams *streams, bool is_stderr)
{
    return is_stderr ? &streams->err : &streams->out;
}

struct job_stream *job_streams_by_sink(struct job_streams *streams, const struct sink *sink)
{
    return job_streams_of(streams, sink == execution_request(streams->execution)->err);
}

void job_streams_fail(struct job_streams *streams, enum cause cause, const struct mandor_err *err)
{
    if (streams->failed)
        return;
    streams->failed = true;
    streams->cause = cause;
    if (err != NULL)
        streams->error = *err;
}

static void hurry(struct job_stream *stream, const struct verdict *verdict, bool asked)
{
    const struct execution_request *request = execution_request(stream->streams->execution);
    struct sink *sink = stream->is_stderr ? request->err : request->out;
    enum outcome outcome = verdict_outcome(verdict, request->spec);

    if (stream->filter == NULL || stream->ended)
        return;
    outputs_foresee(request->spec, sink, stream->is_stderr, outcome);
    if (!outputs_wanted(request->spec, sink, stream->is_stderr, outcome))
        filter_hurry(stream->filter, UNWANTED_MS);
    else if (asked)
        filter_hurry(stream->filter, WANTED_MS);
}

void job_streams_stop(struct job_streams *streams, enum cause cause, const struct verdict *frozen)
{
    bool now = cause == CAUSE_CANCELLED || cause == CAUSE_LOST_LEASE;
    bool asked = now || cause == CAUSE_SHUTDOWN;
    struct verdict verdict = { .cause = cause, .exit_code = -1 };

    if (frozen != NULL && !asked)
        return;
    if (frozen != NULL && !now)
        verdict = *frozen;
    if (frozen != NULL && now)
        job_streams_fail(streams, cause, NULL);
    streams->stopped = cause;
    hurry(&streams->out, &verdict, asked);
    hurry(&streams->err, &verdict, asked);
}

void job_streams_judge(const struct job_streams *streams, struct verdict *verdict)
{
    if (!streams->failed || (verdict->cause != CAUSE_EXIT && verdict->cause != CAUSE_SIGNAL &&
                             verdict->cause != streams->cause))
        return;
    verdict->cause = streams->cause;
    (void)snprintf(verdict->error, sizeof verdict->error, "%s", streams->error.msg);
}

bool job_streams_paused(const struct job_streams *streams)
{
    return filter_paused(streams->out.filter) || filter_paused(streams->err.filter);
}

unsigned job_streams_close(struct job_streams *streams, void (*on_closed)(void *arg), void *arg)
{
    struct filter *filters[] = { streams->out.filter, streams->err.filter };
    unsigned count = 0;

    for (size_t i = 0; i < ARRAY_LEN(filters); i++)
        if (filters[i] != NULL) {
            filter_close(filters[i], on_closed, arg);
            count++;
        }
    return count;
}
