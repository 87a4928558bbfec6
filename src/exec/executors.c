/* executors.c - the registry and the part that all executors share.  Contract in executor.h. */
#include "exec/job_streams.h"

#define EXECUTION_MAGIC 0x65786563u

struct execution {
    uint32_t magic;
    const struct executor_ops *ops;
    struct execution_request request;
    struct execution_events events;
    void *arg;
    void (*on_closed)(void *arg);
    void *closed_arg;
    json_t *result, *progress; /* what the job said */
    _Alignas(max_align_t) unsigned char state[];
};

static const struct executor_ops *const executors[] = { &executor_process, &executor_pool,
                                                        &executor_python };

const struct executor_ops *executor_bench;

static const struct executor_ops *find(enum spec_kind kind)
{
    if (executor_bench != NULL && kind == executor_bench->kind)
        return executor_bench;
    for (size_t i = 0; i < ARRAY_LEN(executors); i++)
        if (executors[i]->kind == kind)
            return executors[i];
    return NULL;
}

int executor_start(const struct execution_request *request, const struct execution_events *events,
                   void *arg, struct execution **ret, struct mandor_err *err)
{
    const struct executor_ops *ops = find(request->spec->kind);
    if (request->spec->kind == SPEC_DATA)
        return err_set(err, -EINVAL, FAULT_JOB,
                       "nothing to run: the job has data only, and queue '%s' is not bound to a "
                       "command, pool or program",
                       request->queue);
    if (ops == NULL)
        return err_set(err, -ENOSYS, FAULT_CALLER, "this build has no executor for such a job");

    struct execution *execution = calloc(1, sizeof *execution + ops->state_size);
    if (execution == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "start job %s", request->id);
    *execution = (struct execution){
        .magic = EXECUTION_MAGIC, .ops = ops, .request = *request, .events = *events, .arg = arg
    };

    int r = ops->start(execution, err);
    if (r < 0) {
        json_decref(execution->result);
        json_decref(execution->progress);
        OBJ_FINI(execution);
        free(execution);
        return r;
    }
    *ret = execution;
    return 0;
}

void execution_stop(struct execution *execution, enum cause cause, int64_t grace_ms,
                    const char *why)
{
    OBJ_CHECK(execution, EXECUTION_MAGIC);
    if (grace_ms < 0)
        grace_ms = execution->request.spec->kill_after_ms;
    execution->ops->stop(execution, cause, grace_ms, why);
}

void execution_suspend(struct execution *execution, bool on)
{
    OBJ_CHECK(execution, EXECUTION_MAGIC);
    if (execution->ops->suspend != NULL)
        execution->ops->suspend(execution, on);
}

void execution_sink_ready(struct execution *execution, struct sink *sink, int result,
                          const struct mandor_err *err)
{
    OBJ_CHECK(execution, EXECUTION_MAGIC);
    execution->ops->sink_ready(execution, sink, result, err);
}

struct filter *execution_filter(struct execution *execution, bool want_stderr)
{
    OBJ_CHECK(execution, EXECUTION_MAGIC);
    return execution->ops->streams == NULL
               ? NULL
               : job_streams_of(execution->ops->streams(execution), want_stderr)->filter;
}

int execution_stream_result(const struct execution *execution, bool want_stderr)
{
    OBJ_CHECK(execution, EXECUTION_MAGIC);
    return execution->ops->streams == NULL
               ? 0
               : job_streams_of(execution->ops->streams(execution), want_stderr)->result;
}

const json_t *execution_result(const struct execution *execution)
{
    OBJ_CHECK(execution, EXECUTION_MAGIC);
    return execution->result;
}

const json_t *execution_progress(const struct execution *execution)
{
    OBJ_CHECK(execution, EXECUTION_MAGIC);
    return execution->progress;
}

const char *execution_error(const struct execution *execution)
{
    OBJ_CHECK(execution, EXECUTION_MAGIC);
    return execution->ops->error != NULL ? execution->ops->error(execution) : NULL;
}

json_t *execution_limits_enforced(const struct execution *execution)
{
    OBJ_CHECK(execution, EXECUTION_MAGIC);
    return execution->ops->limits_enforced(execution);
}

const char *execution_containment(const struct execution *execution)
{
    OBJ_CHECK(execution, EXECUTION_MAGIC);
    return execution->ops->containment(execution);
}

void execution_close(struct execution *execution, void (*on_closed)(void *arg), void *arg)
{
    OBJ_CHECK(execution, EXECUTION_MAGIC);
    execution->on_closed = on_closed;
    execution->closed_arg = arg;
    execution->ops->close(execution);
}

void *execution_state(const struct execution *execution)
{
    OBJ_CHECK(execution, EXECUTION_MAGIC);
    return (void *)(uintptr_t)execution->state;
}

const struct execution_request *execution_request(const struct execution *execution)
{
    OBJ_CHECK(execution, EXECUTION_MAGIC);
    return &execution->request;
}

const struct execution_events *execution_events(const struct execution *execution)
{
    OBJ_CHECK(execution, EXECUTION_MAGIC);
    return &execution->events;
}

void *execution_arg(const struct execution *execution)
{
    OBJ_CHECK(execution, EXECUTION_MAGIC);
    return execution->arg;
}

static void keep(json_t **field, json_t *value)
{
    json_decref(*field);
    *field = json_incref(value);
}

void execution_keep_result(struct execution *execution, json_t *value)
{
    OBJ_CHECK(execution, EXECUTION_MAGIC);
    keep(&execution->result, value);
}

void execution_keep_progress(struct execution *execution, json_t *value)
{
    OBJ_CHECK(execution, EXECUTION_MAGIC);
    keep(&execution->progress, value);
    if (execution->events.on_progress != NULL)
        execution->events.on_progress(execution->arg, value);
}

void execution_closed(struct execution *execution)
{
    OBJ_CHECK(execution, EXECUTION_MAGIC);
    void (*on_closed)(void *arg) = execution->on_closed;
    void *arg = execution->closed_arg;

    json_decref(execution->result);
    json_decref(execution->progress);
    OBJ_FINI(execution);
    free(execution);
    if (on_closed != NULL)
        on_closed(arg);
}
