/* executor_ops.h - for those who write an executor. */
#ifndef EXEC_EXECUTOR_OPS_H
#define EXEC_EXECUTOR_OPS_H

#include "exec/executor.h"

struct job_streams;

struct executor_ops {
    const char *name; /* "exec" */
    enum spec_kind kind;
    size_t state_size; /* private state behind execution_state(); zeroed and freed by the core */
    int (*start)(struct execution *execution, struct mandor_err *err);
    void (*stop)(struct execution *execution, enum cause cause, int64_t grace_ms, const char *why);
    void (*suspend)(struct execution *execution, bool on); /* NULL = not offered */
    void (*sink_ready)(struct execution *execution, struct sink *sink, int result,
                       const struct mandor_err *err);
    struct job_streams *(*streams)(const struct execution *execution); /* NULL = none */
    const char *(*error)(const struct execution *execution);           /* NULL = never */
    json_t *(*limits_enforced)(const struct execution *execution);
    const char *(*containment)(const struct execution *execution);
    void (*close)(struct execution *execution); /* ends with execution_closed() */
};

void *execution_state(const struct execution *execution);
const struct execution_request *execution_request(const struct execution *execution);
const struct execution_events *execution_events(const struct execution *execution);
void *execution_arg(const struct execution *execution);
/* What the job says; the last one counts.  value: borrowed.  The owner is told of progress. */
void execution_keep_result(struct execution *execution, json_t *value);
void execution_keep_progress(struct execution *execution, json_t *value);
void execution_closed(struct execution *execution);

/* Takes the place of the executor of its kind; NULL but in programs of bench/. */
extern const struct executor_ops *executor_bench;

extern const struct executor_ops executor_process, executor_pool, executor_python;

#endif
