/* exec_null.c - an executor that runs nothing: every job has exited 0 by the next turn of the loop.  What is left is the cost of the queue.
 * Linked into bench_null alone, which is mandor but for this. */
#include "exec/executor_ops.h"

struct null {
    uv_idle_t idle;
    bool ended;
};

static void on_idle(uv_idle_t *idle)
{
    struct execution *execution = idle->data;
    struct null *null = execution_state(execution);
    const struct verdict verdict = { .cause = CAUSE_EXIT };

    (void)uv_idle_stop(idle);
    null->ended = true;
    execution_events(execution)->on_ended(execution_arg(execution), &verdict);
}

static int start(struct execution *execution, struct mandor_err *err)
{
    struct null *null = execution_state(execution);
    int r = uv_idle_init(execution_request(execution)->env->loop, &null->idle);

    if (r < 0)
        return err_set(err, r, FAULT_HOST, "start job");
    null->idle.data = execution;
    return uv_idle_start(&null->idle, on_idle);
}

static void stop(struct execution *execution, enum cause cause, int64_t grace_ms, const char *why)
{
    (void)execution, (void)cause, (void)grace_ms, (void)why; /* it ends by itself */
}

static void sink_ready(struct execution *execution, struct sink *sink, int result,
                       const struct mandor_err *err)
{
    (void)execution, (void)sink, (void)result, (void)err;
}

static json_t *limits_enforced(const struct execution *execution)
{
    (void)execution;
    return NULL;
}

static const char *containment(const struct execution *execution)
{
    (void)execution;
    return NULL;
}

static void on_closed(uv_handle_t *handle)
{
    execution_closed(handle->data);
}

static void close_null(struct execution *execution)
{
    struct null *null = execution_state(execution);
    uv_close((uv_handle_t *)&null->idle, on_closed);
}

static const struct executor_ops executor_null = {
    .name = "null",
    .kind = SPEC_EXEC,
    .state_size = sizeof(struct null),
    .start = start,
    .stop = stop,
    .sink_ready = sink_ready,
    .limits_enforced = limits_enforced,
    .containment = containment,
    .close = close_null,
};

__attribute__((constructor)) static void take_over(void)
{
    executor_bench = &executor_null;
}
