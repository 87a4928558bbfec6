/* sink.h - where one stream's bytes go.  For those who use one; sink_ops.h is for those who write one.
 *
 *   sink_open ─▶ opened ─▶ (sink_write ─▶ on_written)* ─▶ [sink_prepare] ─▶ sink_commit | sink_abort ─▶ on_done ─▶ sink_close
 *
 * Everything is asynchronous: callbacks run on the loop thread, never from inside the call that asked (except where
 * noted).  One write in flight at a time; its memory stays the caller's and untouched until on_written.  Nothing that
 * was written is visible as finished before commit; abort leaves nothing behind.  Blocking work runs on uv's pool.
 */
#ifndef SINK_SINK_H
#define SINK_SINK_H

#include <sys/uio.h>
#include <uv.h>
#include <xxhash.h>

#include "base/err.h"
#include "base/macro.h"
#include "job/spec.h"

struct sink;

/* What a sink is opened for.  All text is borrowed for the call only. */
struct sink_target {
    const char *url;    /* expanded: "auto:", "file:/a/b", "null:", "inherit:" */
    const char *job_id; /* for names of temporary files */
    int64_t attempt;
    const char *stream; /* "stdout" or "stderr" */
    /* What names of temporary files have in place of stream, which is not all that tells two of them apart; NULL = stream. */
    const char *trace;
    const char *data_dir; /* where auto: spills: <data_dir>/output/<id>/<attempt>.<stream> */
    /* Open temporary files are noted here, see sink_sweep(); NULL = no journal (run). */
    const char *journal_dir;
    /* What cannot be ended now is noted there, see left.h; NULL = <data_dir>/left. */
    const char *left_dir;
    /* What a sink of the embedding program's own is opened with (sink_open_with()); else NULL. */
    void *context;
    enum spec_frame frame; /* what the stream is made of, for sinks that store it piece by piece */
    size_t frame_max;
    int64_t patience_ms; /* sink_timeout: so long may full storage be waited for; 0 = for ever */
    int inherit_fd; /* inherit: the descriptor to write to (borrowed, never set O_NONBLOCK); else -1 */
};

/* result: 0 or -errno, then *err says why (valid during the call only). */
typedef void sink_done_fn(void *arg, int result, const struct mandor_err *err);

/* Is url of a known scheme and well-formed?  No I/O.  0 or -EINVAL with *err. */
MUST_CHECK int sink_check_url(const char *url, struct mandor_err *err);

/* Make a sink and start opening it.  *ret is valid at once; on_opened runs later, exactly once. */
MUST_CHECK int sink_open(uv_loop_t *loop, const struct sink_target *target, sink_done_fn *on_opened,
                         void *arg, struct sink **ret, struct mandor_err *err);

/* Write all of iov, in order.  hash: updated with the bytes where they are written (off the loop when large); may be NULL.
 * The iovec array and its memory are pinned until on_written (result 0 = all of it was taken). */
void sink_write(struct sink *sink, const struct iovec *iov, int count, XXH3_state_t *hash,
                sink_done_fn *on_written, void *arg);

/* Everything of a commit that may fail before the step that makes it visible: where two sinks commit together both are prepared
 * before either does.  Optional, ends writing; sink_commit or sink_abort still follows, also after a failure. */
void sink_prepare(struct sink *sink, sink_done_fn *on_prepared, void *arg);
/* Make what was written durable and visible under its final name, atomically.  Or drop it.  Either ends writing; a write
 * in flight is waited for.  Exactly one of the two, once.  sink_abort may come before on_opened.  The filter that writes to the
 * sink must have ended or been closed.
 *
 * until_boot_ms: when the lease ends that allows it (I7), on clock_boot_ms(); SINK_NO_DEADLINE where there is none.  Nothing becomes
 * visible after it: a commit that has not come so far cleans up and reports -ETIME. */
void sink_commit(struct sink *sink, int64_t until_boot_ms, sink_done_fn *on_done, void *arg);
void sink_abort(struct sink *sink, sink_done_fn *on_done, void *arg);
#define SINK_NO_DEADLINE INT64_MAX
/* The lease was renewed while the commit goes on: it has until then. */
void sink_extend(struct sink *sink, int64_t until_boot_ms);
/* What has not been made visible never will be.  code: -ETIME, the lease is over or lost; -ECANCELED, nobody wants it any more.  A commit or
 * prepare in flight reports it at once, whatever hangs in it; but where the last step is under way its answer is waited for, so on_done always
 * says what is there. */
void sink_revoke(struct sink *sink, int code);

/* The storage does not answer (sink_timeout): nothing is published any more.  A call in flight that its back end can break off is, and
 * sink_abort then cleans up as ever; else sink_commit and sink_abort report -ETIMEDOUT and 0 without waiting for it, and what hangs cleans
 * up by itself if it ever returns. */
void sink_give_up(struct sink *sink);

/* After on_done, after a failed on_opened, or earlier: then it is an abort whose end nobody waits for.  A write in flight still
 * answers its on_written.  Frees. */
void sink_close(struct sink *sink);

/* Direct ways past sink_write, for a pool thread that moves the bytes of a busy stream itself.  Both may change from call to call
 * (auto: offers them once it has spilled).
 * sink_splice_fd: a descriptor that splice(2) may write to, or -1 where that is not possible or measured slower (tmpfs).
 * sink_write_fd: one that write(2) may write to; SINK_FD_NOWHERE: the bytes need not be written at all; or -1. */
#define SINK_FD_NOWHERE (-2)
int sink_splice_fd(const struct sink *sink);
int sink_write_fd(const struct sink *sink);
uint64_t sink_device(const struct sink *sink); /* for work_submit(), see loop/work.h */
/* The descriptor is in use from sink_lend() to sink_spliced(): like a write in flight, commit and abort wait for it. */
void sink_lend(struct sink *sink);
/* result: 0 or the -errno of a failed write, after which the sink cannot be committed. */
void sink_spliced(struct sink *sink, int64_t bytes, int result);

const char *sink_kind(const struct sink *sink); /* "auto", "file", "null", "inherit" */
/* Final path or URL; NULL when inline or nowhere. */
const char *sink_target_text(const struct sink *sink);
/* Does commit publish something outside of the record, so that begin_settle must come before it? */
bool sink_publishes(const struct sink *sink);
/* auto: up to SINK_INLINE_MAX bytes kept in memory for the record (borrowed until close).  NULL when spilled or other. */
const void *sink_inline(const struct sink *sink, size_t *ret_len);
#define SINK_INLINE_MAX ((size_t)64 << 10)
/* Is it on another machine, so that its commit may fail where one here would not? */
bool sink_is_remote(const struct sink *sink);
/* stdout commits on success only, stderr and everything under auto: always, unless the job says otherwise. */
bool sink_commits_always(const struct sink *sink);

/* Remove temporary files that a dead worker's journal names, then the journal.  Blocking: not on the loop thread.
 * Returns how many were removed, or -errno. */
MUST_CHECK int sink_sweep(const char *journal_dir, struct mandor_err *err);

#endif
