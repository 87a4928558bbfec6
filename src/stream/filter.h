/* filter.h - the process filter: one stream's bytes from a job to its sink, through a bounded ring, with backpressure.
 *
 *    pipe ──▶ ring ──▶ framer, hash, capture, followers ──▶ sink          (ring path)
 *    pipe ───────────────── splice(2) ────────────────────▶ descriptor    (splice path)
 *
 * It sees bytes and nothing else.  Full ring or stalled sink: the pipe leaves epoll, the kernel blocks the writer.  Nothing is
 * dropped unless `output_policy: discard` asked for it, and then the loss is counted.  At most FILTER_TURN_MAX bytes a stream
 * a loop turn.  Loop thread only.
 */
#ifndef STREAM_FILTER_H
#define STREAM_FILTER_H

#include <uv.h>

#include "base/err.h"
#include "base/list.h"
#include "base/macro.h"
#include "job/spec.h"
#include "sink/sink.h"

#define FILTER_HIGH     ((size_t)256 << 10) /* ring capacity = high watermark, bytes */
#define FILTER_LOW      ((size_t)64 << 10)  /* poll again at or below */
#define FILTER_TIGHT    ((size_t)16 << 10)  /* high watermark while the pool is over buffer_max */
#define FILTER_TURN_MAX ((size_t)256 << 10) /* bytes a stream a turn */
#define FILTER_CAPTURE  ((size_t)64 << 10)  /* last bytes kept for the record */

/* What all filters of a process share: the memory budget. */
struct filter_pool;
MUST_CHECK int filter_pool_new(uv_loop_t *loop, size_t buffer_max, struct filter_pool **ret);
/* No filter may be left; the pool is freed when its handles have closed. */
void filter_pool_close(struct filter_pool *pool);

struct filter;

struct filter_options {
    enum spec_frame frame;
    size_t frame_max;
    bool checksum;      /* xxh3 */
    bool capture;       /* keep the last FILTER_CAPTURE bytes */
    int64_t output_max; /* bytes, 0 = none */
    enum spec_output_policy output_policy;
    int64_t sink_timeout_ms; /* 0 = none */
};

struct filter_events {
    /* Bytes arrived (for idle_timeout).  At most once a turn. */
    void (*on_activity)(void *arg);
    /* Everything that was read is with the sink, or the stream failed: result 0, or -errno with *err.
     * -EPROTO: framing; -EFBIG: over output_max with policy kill; -ETIMEDOUT: sink stalled; else the sink's own.
     * Once.  After a failure the source is closed; the owner ends the job. */
    void (*on_ended)(void *arg, int result, const struct mandor_err *err);
    /* frame `lines` only: the newest text that ended in \r (a progress bar), at most once a turn, cut to 1 KiB.  May be NULL. */
    void (*on_progress)(void *arg, const char *text, size_t len);
};

/* sink: borrowed, opened or still opening (call filter_sink_ready() when it is); events: copied. */
MUST_CHECK int filter_new(struct filter_pool *pool, const struct filter_options *options,
                          struct sink *sink, const struct filter_events *events, void *arg,
                          struct filter **ret);

/* Source (a): the read end of a pipe.  Consumed whatever the result; made O_NONBLOCK here. */
MUST_CHECK int filter_adopt_pipe(struct filter *filter, int fd);
/* Source (b): bytes from a peer.  Returns how many were taken (may be fewer: wait for on_room). */
size_t filter_feed(struct filter *filter, const void *bytes, size_t len);
void filter_feed_end(struct filter *filter);
void filter_on_room(struct filter *filter, void (*on_room)(void *arg));

/* The sink's open has succeeded: bytes may flow. */
void filter_sink_ready(struct filter *filter);
/* The sink's open or write failed elsewhere: stop reading and end with result. */
void filter_fail(struct filter *filter, int result, const struct mandor_err *err);

/* From now on the sink may take no byte for so long only, if sink_timeout does not end it before: the job was stopped. */
void filter_hurry(struct filter *filter, int64_t ms);

/* The leader has exited (doc/decisions/06-drain-rule.md): read on while bytes come; over when nothing came for idle_ms while polled and
 * empty, after cap_ms in all, or at end of file, then on_drained runs once.  The containment is emptied next. */
void filter_drain(struct filter *filter, int64_t idle_ms, int64_t cap_ms,
                  void (*on_drained)(void *arg));
/* The containment is empty: read what the pipe holds until EAGAIN or end of file, close it, flush; on_ended follows. */
void filter_finish(struct filter *filter);

/* Who follows live (`logs -f`).  on_bytes gets the captured tail first, then what comes; must not block, keeps nothing. */
struct follower {
    struct list node;
    void (*on_bytes)(struct follower *follower, const void *bytes, size_t len);
    /* The filter has ended; it forgot the follower before this call. */
    void (*on_end)(struct follower *follower);
    void *data;
};
void filter_follow(struct filter *filter, struct follower *follower);
void filter_unfollow(struct follower *follower);

struct filter_stats {
    /* bytes: all that the job wrote; bytes - discarded_bytes went to the sink, and xxh3 is over those (once on_ended was due). */
    int64_t bytes, frames, pauses, paused_ms, discarded_bytes;
    bool has_xxh3;
    uint64_t xxh3;
    bool spliced;     /* the splice path carried it */
    const void *tail; /* captured, oldest first; borrowed until filter_close() */
    size_t tail_len;
};
void filter_stats(struct filter *filter, struct filter_stats *ret);
/* Is reading stopped by backpressure now? */
bool filter_paused(const struct filter *filter);

/* Any time; usually after on_ended.  on_closed (may be NULL) does not wait for a write that hangs in a sink: what that has pinned
 * frees itself when it returns.  After on_closed the sink may be closed, before as well. */
void filter_close(struct filter *filter, void (*on_closed)(void *arg), void *arg);

#endif
