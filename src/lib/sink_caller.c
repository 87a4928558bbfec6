/* sink_caller.c - contract in sink_caller.h. */
#include "lib/sink_caller.h"

static int check(const char *rest, struct mandor_err *err)
{
    (void)rest;
    (void)err;
    return 0;
}

static void open_sink(struct sink *sink, const struct sink_target *target, const char *rest)
{
    struct caller *caller = target->context;

    (void)rest;
    *(struct caller **)sink_state(sink) = caller;
    caller->sink = sink;
    sink_answer(sink, 0, NULL);
}

static struct caller *caller_of(const struct sink *sink)
{
    return *(struct caller *const *)sink_state(sink);
}

/* Hand over what the callback takes; the answer says that all of it was taken. */
static void deliver(struct caller *caller)
{
    caller->delivering = true; /* the callback may pause and resume */
    while (caller->next < caller->count && !caller->paused) {
        const struct iovec *piece = &caller->iov[caller->next++];
        if (caller->hash != NULL)
            (void)XXH3_64bits_update(caller->hash, piece->iov_base, piece->iov_len);
        caller->on_bytes(caller, piece->iov_base, piece->iov_len);
    }
    caller->delivering = false;
    if (caller->next < caller->count || caller->iov == NULL)
        return;
    caller->iov = NULL;
    sink_answer(caller->sink, 0, NULL);
}

static void write_sink(struct sink *sink, const struct iovec *iov, int count, XXH3_state_t *hash)
{
    struct caller *caller = caller_of(sink);

    caller->iov = iov;
    caller->count = count;
    caller->next = 0;
    caller->hash = hash;
    deliver(caller);
}

static void end_sink(struct sink *sink)
{
    sink_answer(sink, 0, NULL);
}

static void done(struct sink *sink)
{
    (void)sink; /* the caller belongs to its owner, who may have gone already */
}

static const struct sink_ops sink_caller = {
    .scheme = "caller",
    .state_size = sizeof(struct caller *),
    .commits_always = true,
    .check = check,
    .open = open_sink,
    .write = write_sink,
    .commit = end_sink,
    .abort = end_sink,
    .done = done,
};

int sink_open_caller(uv_loop_t *loop, struct caller *caller, const char *stream,
                     sink_done_fn *on_opened, void *arg, struct sink **ret, struct mandor_err *err)
{
    struct sink_target target = {
        .url = "caller:", .stream = stream, .context = caller, .inherit_fd = -1
    };
    return sink_open_with(loop, &sink_caller, &target, "", on_opened, arg, ret, err);
}

void caller_pause(struct caller *caller)
{
    caller->paused = true;
}

void caller_resume(struct caller *caller)
{
    caller->paused = false;
    if (caller->iov != NULL && !caller->delivering)
        deliver(caller);
}
