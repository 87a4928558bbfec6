/* job_streams.h - the two output streams of one attempt: a filter each, their first failure, and what that makes of the verdict.
 * Used by every executor.  Embedded in its owner.  Loop thread only. */
#ifndef EXEC_JOB_STREAMS_H
#define EXEC_JOB_STREAMS_H

#include "exec/executor_ops.h"

struct job_streams;

struct job_stream {
    struct job_streams *streams;
    struct filter *filter;
    int result; /* its first failure, or 0 */
    bool is_stderr, ended;
};

struct job_streams {
    struct job_stream out, err;
    struct execution *execution;
    int64_t active_at_ms; /* monotonic: last byte from the job */
    enum cause stopped;   /* shutdown: what a sink that keeps us waiting then counts as */
    bool failed;          /* one of them, or stdin: error and cause say how */
    struct mandor_err error;
    enum cause cause;
    /* Everything of the stream is with its sink, or it failed (stream->result < 0). */
    void (*on_ended)(struct execution *execution, struct job_stream *stream);
};

/* Make both filters for the request's sinks.  0 or -errno (then job_streams_close() is still due). */
MUST_CHECK int job_streams_open(struct job_streams *streams, struct execution *execution,
                                void (*on_ended)(struct execution *execution,
                                                 struct job_stream *stream));
struct job_stream *job_streams_of(struct job_streams *streams, bool is_stderr);
struct job_stream *job_streams_by_sink(struct job_streams *streams, const struct sink *sink);

/* The first failure stays. */
void job_streams_fail(struct job_streams *streams, enum cause cause, const struct mandor_err *err);
/* The job is stopped.  What will not be committed waits for no sink that stalls, and where somebody asked for the end what will be does not wait
 * for long either.  frozen: the verdict, once its processes have ended; a cancel or a lost lease still takes its place. */
void job_streams_stop(struct job_streams *streams, enum cause cause, const struct verdict *frozen);
/* A failed stream outranks an exit status that was read before the failure was known: an attempt whose bytes did not arrive is
 * not completed (I4). */
void job_streams_judge(const struct job_streams *streams, struct verdict *verdict);
/* Is reading stopped by backpressure now?  Silence is then ours, not the job's. */
bool job_streams_paused(const struct job_streams *streams);
/* on_closed runs once for each filter that there is; returns how many. */
unsigned job_streams_close(struct job_streams *streams, void (*on_closed)(void *arg), void *arg);

#endif
