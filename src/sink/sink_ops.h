/* sink_ops.h - for those who write a sink.  tests/contract/test_sink.c must pass on each. */
#ifndef SINK_SINK_OPS_H
#define SINK_SINK_OPS_H

#include "sink/sink.h"

/* A back end answers each call with sink_answer(), on the loop thread, now or later; the core defers what is too early.
 * After a failed open or write only abort follows; a failed commit cleans up after itself. */
struct sink_ops {
    const char *scheme;  /* "file" for file:… */
    size_t state_size;   /* private state behind sink_state(); zeroed and freed by the core */
    bool publishes;      /* commit makes something visible outside of the record */
    bool commits_always; /* on stdout too; stderr always does */
    bool remote; /* a commit needs another machine, so it may fail where one here would not */
    int (*check)(const char *rest, struct mandor_err *err); /* rest: the URL behind "scheme:" */
    void (*open)(struct sink *sink, const struct sink_target *target, const char *rest);
    void (*write)(struct sink *sink, const struct iovec *iov, int count, XXH3_state_t *hash);
    void (*commit)(struct sink *sink);
    void (*abort)(struct sink *sink);
    /* Free what the state holds; also after an open that failed at once. */
    void (*done)(struct sink *sink);
    /* Optional: */
    void (*prepare)(struct sink *sink); /* sink_prepare(); NULL = nothing to do */
    /* Nobody waits any more for the open, write, prepare or commit that is in flight: answer it with a failure, now or soon, without waiting
     * for anybody else.  NULL = it cannot be broken off. */
    void (*interrupt)(struct sink *sink);
    /* For a sink of sinks, which has no last step of its own: sink_revoke() and sink_extend() are for its members. */
    void (*revoke)(struct sink *sink, int code);
    void (*extend)(struct sink *sink, int64_t until_boot_ms);
    bool (*publishes_now)(const struct sink *sink);      /* NULL = `publishes` says it */
    int (*splice_fd)(const struct sink *sink);           /* NULL = never */
    int (*write_fd)(const struct sink *sink);            /* NULL = never */
    uint64_t (*device)(const struct sink *sink);         /* NULL = WORK_CPU */
    const char *(*target_text)(const struct sink *sink); /* NULL = none */
    const void *(*inline_bytes)(const struct sink *sink, size_t *ret_len); /* NULL = none */
};

void *sink_state(const struct sink *sink);
uv_loop_t *sink_loop(const struct sink *sink);
/* Has the owner given the sink up, so that a write that blocks should return?  Any thread, inside of a write only. */
bool sink_abandoned(struct sink *sink);
/* Ask before the step of a commit that makes it visible, and before each repetition of it: rename, CompleteMultipartUpload, the script
 * that adds `eof`.  Any thread.  false with *err (-ETIME): the lease is over or nobody waits any more: clean up and answer with it.
 * true: the answer is waited for, so the step must end by itself within sink_commit_left_ms(), as the timeout of a request. */
MUST_CHECK bool sink_may_publish(struct sink *sink, struct mandor_err *err);
/* Until the commit's lease ends; <= 0 when it has, INT64_MAX without one.  Grows when the lease is renewed.  Any thread. */
int64_t sink_commit_left_ms(struct sink *sink);
/* The answer to the call that is open: open, write, prepare, commit or abort. */
void sink_answer(struct sink *sink, int result, const struct mandor_err *err);

/* Like sink_open(), for a back end that the registry does not list.  rest: the URL behind "scheme:". */
MUST_CHECK int sink_open_with(uv_loop_t *loop, const struct sink_ops *ops,
                              const struct sink_target *target, const char *rest,
                              sink_done_fn *on_opened, void *arg, struct sink **ret,
                              struct mandor_err *err);

extern const struct sink_ops sink_auto, sink_file, sink_null, sink_inherit;

#endif
