/* outputs.c - contract in outputs.h. */
#include "exec/outputs.h"

#include <stdio.h>
#include <xxhash.h>

#include "job/sink_list.h"
#include "sink/sink_ops.h"
#include "stream/fan.h"

static void on_opened(void *arg, int result, const struct mandor_err *err)
{
    struct output *output = arg;

    output->opened = result >= 0;
    output->failed = result < 0;
    if (output->outputs->execution != NULL)
        execution_sink_ready(output->outputs->execution, output->sink, result, err);
}

/* Jobs of two queues' brokers may have one number and write into one directory: their temporary files have names of their own. */
static void name_trace(char *trace, size_t size, const char *stream, const char *data_dir)
{
    (void)snprintf(trace, size, "%s.%08x", stream, XXH32(data_dir, strlen(data_dir), 0));
}

static int open_one(struct output *output, uv_loop_t *loop, const struct outputs_place *place,
                    struct mandor_err *err)
{
    const struct spec *spec = output->outputs->spec;
    const char *stream = output->is_stderr ? "stderr" : "stdout";
    const struct spec_str *url = output->is_stderr ? &spec->stderr_sink : &spec->stdout_sink;
    SCOPED_FREE char *expanded =
        spec_expand(url->bytes, place->own_id != NULL ? place->own_id : place->id, place->queue,
                    place->attempt, stream, err);
    char trace[32];
    struct sink_target target = {
        .url = expanded,
        .job_id = place->id,
        .attempt = place->attempt,
        .stream = stream,
        .data_dir = place->data_dir,
        .journal_dir = place->journal_dir,
        .left_dir = place->left_dir,
        .frame = output->is_stderr && spec->frame != FRAME_RAW ? FRAME_LINES : spec->frame,
        .frame_max = (size_t)spec->frame_max_bytes,
        .patience_ms = spec->sink_timeout_ms,
        .inherit_fd = output->is_stderr ? STDERR_FILENO : STDOUT_FILENO,
    };

    if (place->data_dir != NULL) {
        name_trace(trace, sizeof trace, stream, place->data_dir);
        target.trace = trace;
    }
    if (place->open != NULL)
        return place->open(place->open_arg, output->is_stderr, on_opened, output, &output->sink,
                           err);
    if (expanded == NULL)
        return err->code;
    if (sink_list_is(expanded)) {
        target.context = place->filters;
        return sink_open_with(loop, &sink_fan, &target, expanded, on_opened, output, &output->sink,
                              err);
    }
    return sink_open(loop, &target, on_opened, output, &output->sink, err);
}

int outputs_open(struct outputs *outputs, uv_loop_t *loop, const struct spec *spec,
                 const struct outputs_place *place, struct mandor_err *err)
{
    *outputs = (struct outputs){ .spec = spec };
    outputs->out.outputs = outputs->err.outputs = outputs;
    outputs->err.is_stderr = true;

    int r = open_one(&outputs->out, loop, place, err);
    if (r == 0)
        r = open_one(&outputs->err, loop, place, err);
    return r;
}

void outputs_attach(struct outputs *outputs, struct execution *execution)
{
    outputs->execution = execution;
}

static bool is_fan(const struct sink *sink)
{
    return sink != NULL && str_eq(sink_kind(sink), sink_fan.scheme);
}

void outputs_foresee(const struct spec *spec, struct sink *sink, bool is_stderr,
                     enum outcome outcome)
{
    /* Of several sinks of a stdout that is not to be seen, auto: is kept all the same. */
    if (is_fan(sink))
        fan_commit_all(sink,
                       outcome == OUTCOME_COMPLETED || spec->commit == COMMIT_ALWAYS || is_stderr);
}

bool outputs_wanted(const struct spec *spec, const struct sink *sink, bool is_stderr,
                    enum outcome outcome)
{
    if (outcome == OUTCOME_NOTHING)
        return false;
    if (outcome == OUTCOME_COMPLETED || spec->commit == COMMIT_ALWAYS)
        return true;
    return spec->commit == COMMIT_DEFAULT &&
           (is_stderr || sink_commits_always(sink) || (is_fan(sink) && fan_commits_some(sink)));
}

static void choose_members(const struct output *output)
{
    const struct outputs *outputs = output->outputs;

    outputs_foresee(outputs->spec, output->sink, output->is_stderr,
                    verdict_outcome(outputs->verdict, outputs->spec));
}

static bool commits(const struct output *output, const struct verdict *verdict)
{
    const struct outputs *outputs = output->outputs;

    /* An attempt that never ran has none: cancelled before its start. */
    if (output->sink == NULL || !output->opened)
        return false;

    int failed = outputs->execution != NULL
                     ? execution_stream_result(outputs->execution, output->is_stderr)
                     : 0;

    /* The sink itself, not what the job wrote. */
    if (failed < 0 && failed != -EPROTO && failed != -EFBIG)
        return false;
    return outputs_wanted(outputs->spec, output->sink, output->is_stderr,
                          verdict_outcome(verdict, outputs->spec));
}

bool outputs_publish(const struct outputs *outputs, const struct verdict *verdict)
{
    return (commits(&outputs->out, verdict) && sink_publishes(outputs->out.sink)) ||
           (commits(&outputs->err, verdict) && sink_publishes(outputs->err.sink));
}

static void on_one_ended(void *arg, int result, const struct mandor_err *err);

static void end_one(struct output *output)
{
    output->committed = commits(output, output->outputs->verdict);
    output->ending = output->sink != NULL && !output->failed;
    choose_members(output);
    if (!output->ending)
        on_one_ended(output, 0, NULL);
    else if (output->committed)
        sink_commit(output->sink, output->outputs->until_boot_ms, on_one_ended, output);
    else
        sink_abort(output->sink, on_one_ended, output);
}

/* A commit that failed is a sink failure of the attempt: what it wrote is nowhere.  One that was too late is nobody's fault. */
static void note_failure(struct output *output, int result, const struct mandor_err *err)
{
    const struct outputs *outputs = output->outputs;
    struct verdict *verdict = outputs->verdict;

    if (!output->committed)
        return;
    output->committed = false;
    if (result == -ETIME)
        verdict->cause = CAUSE_LOST_LEASE;
    else if (result == -ECANCELED)
        verdict->cause = outputs->stop_cause;
    else if (verdict->cause == CAUSE_EXIT)
        verdict->cause = CAUSE_SINK;
    else
        return;
    (void)snprintf(verdict->error, sizeof verdict->error, "%s", err->msg);
}

static void on_one_ended(void *arg, int result, const struct mandor_err *err)
{
    struct output *output = arg;
    struct outputs *outputs = output->outputs;

    output->ending = false;
    if (result < 0)
        note_failure(output, result, err);
    if (output->is_stderr)
        end_one(&outputs->out);
    else
        outputs->on_ended(outputs->arg);
}

static void on_prepared(void *arg, int result, const struct mandor_err *err)
{
    struct output *output = arg;

    output->ending = output->preparing = false;
    if (result < 0) {
        output->committed = true; /* it was to be */
        note_failure(output, result, err);
    }
    end_one(&output->outputs->err);
}

/* Is stderr to be seen only where stdout is? */
static bool together(const struct outputs *outputs)
{
    return outputs->spec->commit == COMMIT_SUCCESS && commits(&outputs->out, outputs->verdict) &&
           commits(&outputs->err, outputs->verdict) && sink_publishes(outputs->out.sink) &&
           sink_publishes(outputs->err.sink);
}

void outputs_extend(struct outputs *outputs, int64_t until_boot_ms)
{
    outputs->until_boot_ms = until_boot_ms;
    if (outputs->out.ending)
        sink_extend(outputs->out.sink, until_boot_ms);
    if (outputs->err.ending)
        sink_extend(outputs->err.sink, until_boot_ms);
}

void outputs_expire(struct outputs *outputs)
{
    outputs->until_boot_ms = 0; /* for the one whose turn has not come */
    if (outputs->out.ending)
        sink_revoke(outputs->out.sink, -ETIME);
    if (outputs->err.ending)
        sink_revoke(outputs->err.sink, -ETIME);
}

void outputs_stop(struct outputs *outputs, enum cause cause, bool all)
{
    struct output *out = &outputs->out, *err = &outputs->err;

    outputs->stop_cause = cause;
    if (out->ending && (all || out->committed || out->preparing))
        sink_revoke(out->sink, -ECANCELED);
    else if (!out->ending && cause == CAUSE_CANCELLED &&
             outputs->verdict->cause != CAUSE_LOST_LEASE)
        outputs->verdict->cause = cause; /* its turn comes after that of stderr */
    if (all && err->ending)
        sink_revoke(err->sink, -ECANCELED);
}

void outputs_end(struct outputs *outputs, struct verdict *verdict, int64_t until_boot_ms,
                 void (*on_ended)(void *arg), void *arg)
{
    outputs->verdict = verdict;
    outputs->until_boot_ms = until_boot_ms;
    outputs->on_ended = on_ended;
    outputs->arg = arg;
    outputs->out.outputs = outputs->err.outputs = outputs; /* they may never have been opened */
    outputs->err.is_stderr = true;
    outputs->out.ending = outputs->out.preparing = together(outputs);
    choose_members(&outputs->out);
    if (outputs->out.ending)
        sink_prepare(outputs->out.sink, on_prepared, &outputs->out);
    else
        end_one(&outputs->err);
}

void outputs_record(struct outputs *outputs, bool is_stderr, struct record_stream *ret)
{
    struct output *output = is_stderr ? &outputs->err : &outputs->out;
    struct filter_stats stats = { 0 };

    struct filter *filter =
        outputs->execution != NULL ? execution_filter(outputs->execution, is_stderr) : NULL;
    if (filter != NULL)
        filter_stats(filter, &stats);
    json_decref(output->sinks);
    output->sinks = is_fan(output->sink) ? fan_record(output->sink) : NULL;
    *ret = (struct record_stream){
        .sinks = output->sinks,
        .sink = sink_kind(output->sink),
        .path = stats.spliced ? "splice" : "ring",
        .target = sink_target_text(output->sink),
        .bytes = stats.bytes,
        .frames = stats.frames,
        .pauses = stats.pauses,
        .paused_ms = stats.paused_ms,
        .discarded_bytes = stats.discarded_bytes,
        .has_xxh3 = stats.has_xxh3,
        .xxh3 = stats.xxh3,
        .tail = stats.tail,
        .tail_len = stats.tail_len,
        .committed = output->committed,
    };
}

void outputs_close(struct outputs *outputs)
{
    if (outputs->out.sink != NULL)
        sink_close(outputs->out.sink);
    if (outputs->err.sink != NULL)
        sink_close(outputs->err.sink);
    outputs->out.sink = outputs->err.sink = NULL;
    json_decref(STEAL(outputs->out.sinks));
    json_decref(STEAL(outputs->err.sinks));
}
