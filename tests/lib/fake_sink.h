/* fake_sink.h - a sink that a test holds in its hand: what it got, when it answers, what fails. */
#ifndef TESTS_FAKE_SINK_H
#define TESTS_FAKE_SINK_H

#include "base/buf.h"
#include "sink/sink_ops.h"

struct fake_sink {
    struct buf got;     /* kept bytes (when keep is on) */
    XXH3_state_t *hash; /* of all bytes */
    int64_t bytes;
    size_t largest_write;
    bool keep;
    bool hold_open;      /* opening does not answer until fake_sink_release() */
    bool hold_writes;    /* neither do writes */
    bool hold_commit;    /* nor a commit, before it has asked whether it may publish */
    bool hold_publish;   /* … after it has */
    int fail_write_with; /* -errno for the next write */
    int64_t fail_after;  /* … once so many bytes were taken */
    int fail_prepare_with;
    bool prepared, committed, aborted, freed;
    /* the write that is held */
    struct sink *held;
    const struct iovec *iov;
    int count;
    XXH3_state_t *write_hash;
    bool held_open, held_commit, held_publish;
};

void fake_sink_init(struct fake_sink *fake);
void fake_sink_done(struct fake_sink *fake);
/* Open it; on_opened as for sink_open(). */
struct sink *fake_sink_open(uv_loop_t *loop, struct fake_sink *fake, const char *stream,
                            sink_done_fn *on_opened, void *arg);
/* Let the call that is held go on. */
void fake_sink_release(struct fake_sink *fake);

#endif
