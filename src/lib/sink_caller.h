/* sink_caller.h - a sink whose bytes go to the embedding program's callback, with its backpressure. */
#ifndef LIB_SINK_CALLER_H
#define LIB_SINK_CALLER_H

#include "sink/sink_ops.h"

struct caller {
    /* Bytes are the callee's during the call only. */
    void (*on_bytes)(struct caller *caller, const void *bytes, size_t len);
    bool paused, delivering;
    struct sink *sink;       /* set by the sink */
    const struct iovec *iov; /* a write that waits for caller_resume() */
    int count, next;
    XXH3_state_t *hash;
};

/* caller: borrowed until sink_close(). */
MUST_CHECK int sink_open_caller(uv_loop_t *loop, struct caller *caller, const char *stream,
                                sink_done_fn *on_opened, void *arg, struct sink **ret,
                                struct mandor_err *err);
void caller_pause(struct caller *caller);
void caller_resume(struct caller *caller);

#endif
