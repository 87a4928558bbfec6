/* executor.h - runs one attempt, whatever its kind.  Knows nothing of brokers.  Users see this; executor_ops.h is for writers.
 *
 *   executor_start ─▶ on_running ─▶ on_ended(verdict) ─▶ execution_close
 *
 * on_ended comes once, when the leader is reaped, the containment is empty and both streams have ended (I2): all that is left to do
 * is to commit or abort the sinks and to settle.  Loop thread only.
 */
#ifndef EXEC_EXECUTOR_H
#define EXEC_EXECUTOR_H

#include <jansson.h>
#include <uv.h>

#include "base/err.h"
#include "base/macro.h"
#include "child/nursery.h"
#include "job/spec.h"
#include "job/verdict.h"
#include "stream/filter.h"

struct execution;
struct pools;
struct pythons;

/* What executors of one worker share. */
struct executor_env {
    uv_loop_t *loop;
    struct nursery *nursery;
    struct filter_pool *filters;
    struct pools *pools;     /* warm pools; NULL = none here */
    struct pythons *pythons; /* runtimes of Python; NULL = none here */
    /* "NAME=value" of the worker that every job gets (PATH HOME USER LANG LC_* TZ env_pass); NULL-terminated. */
    char *const *env_pass;
};

struct execution_request {
    const struct executor_env *env;
    const struct spec *spec; /* borrowed until execution_close() */
    const char *id, *queue;
    int64_t attempt;
    struct sink *out, *err; /* borrowed; may still be opening: tell by execution_sink_ready() */
    bool inherit_stdin;     /* run: unless the job has a stdin of its own */
};

struct execution_events {
    void (*on_running)(void *arg, pid_t pid, const char *slot, const char *containment);
    void (*on_phase)(void *arg, const char *phase); /* "stopping", "kill_pending", "draining" */
    void (*on_progress)(void *arg, const json_t *progress); /* fd 3 {"progress": …} */
    void (*on_log)(void *arg, const char *text);            /* fd 3 {"log": "…"} */
    void (*on_data)(void *arg, const json_t *data);         /* fd 3 {"data": …} */
    void (*on_again)(void *arg,
                     const json_t *when); /* fd 3 {"again": …}: if it exits 0, run it again then */
    void (*on_ended)(void *arg, const struct verdict *verdict);
};

/* Pick the executor for spec->kind and start.  0, -ENOSYS (that kind is not built in), -ENOMEM, -EINVAL, -EOPNOTSUPP (no such
 * pool, runtime or package here, or the runtime cannot hold to what the job asks for); with *err. */
MUST_CHECK int executor_start(const struct execution_request *request,
                              const struct execution_events *events, void *arg,
                              struct execution **ret, struct mandor_err *err);

/* End it: cause wins over what follows.  grace_ms < 0 takes the job's kill_after.  Timeouts of the spec are the executor's own
 * affair; this is for cancel, shutdown, lost lease and sink failures. */
void execution_stop(struct execution *execution, enum cause cause, int64_t grace_ms,
                    const char *why);
/* Stop or continue what runs, for a terminal's ^Z.  Executors whose jobs share a process do nothing. */
void execution_suspend(struct execution *execution, bool on);
/* A sink of the request has opened, or failed to (result < 0: the attempt ends with cause sink). */
void execution_sink_ready(struct execution *execution, struct sink *sink, int result,
                          const struct mandor_err *err);

/* Live views, valid until execution_close(). */
struct filter *execution_filter(struct execution *execution, bool want_stderr); /* or NULL */
/* 0, or -errno of the first failure of that stream: its sink must not be committed when it is the sink's. */
int execution_stream_result(const struct execution *execution, bool want_stderr);
const json_t *execution_result(const struct execution *execution); /* fd 3 {"result": …}, or NULL */
const json_t *execution_progress(const struct execution *execution); /* the last one, or NULL */
/* What the job itself says of its failure, more than fits into a verdict (a traceback); or NULL. */
const char *execution_error(const struct execution *execution);
json_t *execution_limits_enforced(const struct execution *execution);
const char *execution_containment(const struct execution *execution);

/* After on_ended.  on_closed when its handles are gone. */
void execution_close(struct execution *execution, void (*on_closed)(void *arg), void *arg);

#endif
