/* peer.h - mandor's end of one connection to a warm worker: frames in, frames out, credit, health.
 *
 *   peer_new ─▶ on_hello ─▶ (peer_give ─▶ on_chunk* ─▶ on_done)* ─▶ [peer_bye] ─▶ on_ended ─▶ peer_close
 *
 * The reader always reads: what a job may send is bounded by its credit, so one slow sink never holds up the others.  What is
 * queued for writing is bounded too: JOBs, stdin within the worker's credit, and a little control; a worker that sends and
 * never reads is given up.  Whatever breaks the protocol ends the connection with a reason (doc/pool-protocol.md), once, by
 * on_ended.  Knows nothing of processes.  Loop thread only; callbacks may close the peer.
 */
#ifndef POOL_PEER_H
#define POOL_PEER_H

#include <jansson.h>
#include <uv.h>

#include "base/err.h"
#include "base/list.h"
#include "base/macro.h"

#define PEER_WINDOW ((size_t)256 << 10) /* credit of each output stream of a job, bytes */

struct peer;
struct peer_job;

struct peer_options {
    const char *pool; /* for HELLO; borrowed until peer_close() */
    unsigned concurrency;
    int64_t hello_timeout_ms;
    int64_t ping_interval_ms; /* 0 = never; a worker without jobs has as long to answer */
};

struct peer_events {
    void (*on_hello)(void *arg, const char *name, const char *sdk);
    /* The worker about itself; level may be NULL. */
    void (*on_log)(void *arg, const char *level, const char *text);
    /* It wants no more jobs; those that it holds go on. */
    void (*on_bye)(void *arg, const char *reason);
    /* Over, once.  result 0: end of file between two frames; -EPROTO, -ETIMEDOUT (HELLO or PONG) or -errno, then *err says why.
     * Jobs that it still holds stay linked: the owner ends them by peer_job_drop(). */
    void (*on_ended)(void *arg, int result, const struct mandor_err *err);
};

/* adopt_fd: a connected stream socket, consumed whatever the result; made O_NONBLOCK.  0, -ENOMEM or -errno. */
MUST_CHECK int peer_new(uv_loop_t *loop, int adopt_fd, const struct peer_options *options,
                        const struct peer_events *events, void *arg, struct peer **ret);

/* Tell it that no further job comes: it ends what it has and leaves. */
void peer_bye(struct peer *peer, const char *reason);
/* Its process has been reaped: take what the socket still holds (its last results, R62) and end.  on_ended comes from inside. */
void peer_drain(struct peer *peer);
/* The most jobs that it takes at once: what the options say, or less when its HELLO did. */
unsigned peer_concurrency(const struct peer *peer);
bool peer_over(const struct peer *peer); /* on_ended has come */
/* Any time; no callback but on_closed (may be NULL) after this. */
void peer_close(struct peer *peer, void (*on_closed)(void *arg), void *arg);

/* ---- jobs ---- */

struct peer_task {
    const char *id, *queue;
    int64_t attempt;
    const json_t *data; /* NULL = null */
    int64_t timeout_ms;
    bool has_stdin;
};

struct peer_job_events {
    /* At most PEER_WINDOW bytes a stream that peer_job_took() has not named. */
    void (*on_chunk)(void *arg, bool is_stderr, const void *bytes, size_t len);
    void (*on_chunk_end)(void *arg, bool is_stderr);
    void (*on_room)(void *arg); /* there is more credit for stdin */
    void (*on_progress)(void *arg, json_t *value);
    void (*on_log)(void *arg, const char *level, const char *text);
    /* Exactly one of result and error (the object of ERROR) is not NULL.  The peer has forgotten the job before. */
    void (*on_done)(void *arg, json_t *result, json_t *error);
};

/* Embedded in its owner; fields are the peer's. */
struct peer_job {
    struct list node;
    struct peer *peer; /* NULL = not given, or over */
    uint64_t number;
    uint64_t stdin_credit;
    uint64_t credit[2]; /* stdout, stderr: what the worker may still send */
    uint64_t owed[2];   /* taken, not yet granted again */
    bool stdin_over, over[2];
    const struct peer_job_events *events;
    void *arg;
};

/* Send JOB.  0; -EMSGSIZE: its data is too long for a frame; -ENOMEM. */
MUST_CHECK int peer_give(struct peer *peer, const struct peer_task *task, struct peer_job *job,
                         const struct peer_job_events *events, void *arg);
/* Bytes of stdin that may be sent now. */
size_t peer_job_room(const struct peer_job *job);
/* len <= peer_job_room(); last: stdin ends behind them.  Nothing happens once the job is over. */
void peer_job_stdin(struct peer_job *job, const void *bytes, size_t len, bool last);
/* So many bytes of on_chunk() are with the sink: credit is due. */
void peer_job_took(struct peer_job *job, bool is_stderr, size_t len);
void peer_job_cancel(struct peer_job *job, const char *reason, int64_t grace_ms);
/* After on_ended: did the worker certainly not read this JOB?  Then the job never began (R68). */
bool peer_job_unread(const struct peer *peer, const struct peer_job *job);
/* Forget it; no callback. */
void peer_job_drop(struct peer_job *job);

#endif
