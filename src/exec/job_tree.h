/* job_tree.h - a job that has a process tree of its own: its pipes, its channel, its clocks, and the gates of its end.
 *
 * Bytes and state meet here, and only to be counted: an attempt has ended when every gate is open.
 *
 *   leader reaped ─▶ drain both pipes ─▶ empty the containment ─▶ finish pipes and channel ─▶ on_ended
 *   GATE_DRAIN_OUT|GATE_DRAIN_ERR        GATE_TREE                GATE_OUT|GATE_ERR|GATE_CHANNEL
 *
 * For executors whose state starts with it.  Loop thread only. */
#ifndef EXEC_JOB_TREE_H
#define EXEC_JOB_TREE_H

#include "child/child.h"
#include "exec/channel.h"
#include "exec/executor_ops.h"
#include "exec/job_streams.h"
#include "exec/watchdog.h"
#include "stream/feeder.h"

struct job_tree {
    /* Borrowed; NULL before there is one, or when it goes on without the job. */
    struct child *child;
    struct job_streams streams;
    struct feeder *feeder;
    struct channel *channel;
    struct watchdog watchdog;
    unsigned waiting; /* gates that are still shut */
    unsigned closing; /* handles that are still open, at the end */
    bool ran, exited, ended;
    struct verdict verdict;
    char why[200]; /* why mandor stopped it, for the record */
    void (*on_last)(struct execution *execution);
    void (*on_closed)(struct execution *execution);
};

/* Make the filters; the tree is still to come.  on_last: every gate is open, the last word on the verdict; may be NULL.
 * 0, or -errno (then job_streams_close() is still due, as when the tree does not come). */
MUST_CHECK int job_tree_open(struct execution *execution,
                             void (*on_last)(struct execution *execution));
/* It runs.  channel: on_activity and on_ended are job_tree_heard() and job_tree_unheard(), or call them.  pipes: consumed. */
void job_tree_run(struct execution *execution, struct child *child, const struct child_pipes *pipes,
                  const struct channel_events *channel);
void job_tree_heard(void *execution);
void job_tree_unheard(void *execution);

/* Its leader was reaped: drain what is in the pipes. */
void job_tree_exited(struct execution *execution, const struct verdict *verdict);
/* Nothing of it is alive, or its job is over and it goes on (child is NULL): finish the pipes and the channel. */
void job_tree_empty(struct execution *execution);
/* It will never run. */
void job_tree_unrun(struct execution *execution, const struct verdict *verdict);

/* The executor's on_phase. */
void job_tree_phase(struct execution *execution, const char *phase);

/* What executor_ops ask for. */
void job_tree_stop(struct execution *execution, enum cause cause, int64_t grace_ms,
                   const char *why);
void job_tree_suspend(struct execution *execution, bool on);
void job_tree_sink_ready(struct execution *execution, struct sink *sink, int result,
                         const struct mandor_err *err);
struct job_streams *job_tree_streams(const struct execution *execution);
/* After on_ended; the child is the executor's to close. */
void job_tree_close(struct execution *execution, void (*on_closed)(struct execution *execution));

#endif
