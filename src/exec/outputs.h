/* outputs.h - the two sinks of an attempt: opened together, and ended one after the other by one rule.
 *
 *   stdout commits only when the attempt completes; stderr, and whatever goes to auto:, on every outcome (doc/decisions/05-commit-rules.md);
 *   the job's `commit` overrides; nothing commits whose own sink has failed, or after a lost lease.
 *   Where stderr may only be seen on success too, stdout is prepared first: what can fail fails before either is visible.
 *
 * Embedded in its owner.  Loop thread only. */
#ifndef EXEC_OUTPUTS_H
#define EXEC_OUTPUTS_H

#include "exec/executor.h"
#include "job/record.h"

struct outputs {
    struct output {
        struct outputs *outputs;
        struct sink *sink;
        json_t *sinks; /* of a fan, for the record */
        bool is_stderr, opened, failed, committed;
        bool ending; /* its commit or abort is under way, or its prepare */
        bool preparing;
    } out, err;
    const struct spec *spec;
    struct execution *execution; /* NULL before it was started */
    struct verdict *verdict;
    enum cause stop_cause; /* outputs_stop() */
    int64_t until_boot_ms;
    void (*on_ended)(void *arg);
    void *arg;
};

struct outputs_place {
    const char *id, *queue;
    const char *own_id; /* what {id} stands for in the job's URLs; NULL = id */
    int64_t attempt;
    const char *data_dir, *journal_dir; /* see struct sink_target */
    const char *left_dir;
    struct filter_pool *filters; /* that the buffers of several sinks are counted in */
    /* Opens a sink of the owner's own instead of the one that the job names; NULL = by URL. */
    int (*open)(void *arg, bool is_stderr, sink_done_fn *on_opened, void *opened_arg,
                struct sink **ret, struct mandor_err *err);
    void *open_arg;
};

/* Open both.  0, or -errno with *err: then outputs_end() still has to end what was opened. */
MUST_CHECK int outputs_open(struct outputs *outputs, uv_loop_t *loop, const struct spec *spec,
                            const struct outputs_place *place, struct mandor_err *err);
/* The executor runs: tell it of sinks that open from now on. */
void outputs_attach(struct outputs *outputs, struct execution *execution);

/* Would ending with this verdict make anything visible outside of the record? */
bool outputs_publish(const struct outputs *outputs, const struct verdict *verdict);
/* Commit or abort stderr, then stdout.  A commit that fails turns an exit into cause `sink` in *verdict, one that came too late turns
 * any cause into `lost_lease`.  on_ended runs once.  until_boot_ms: see sink_commit(). */
void outputs_end(struct outputs *outputs, struct verdict *verdict, int64_t until_boot_ms,
                 void (*on_ended)(void *arg), void *arg);
/* While outputs_end() goes on: the lease was renewed; or it is over, and what is not visible yet never will be. */
void outputs_extend(struct outputs *outputs, int64_t until_boot_ms);
void outputs_expire(struct outputs *outputs);
/* While outputs_end() goes on: the job was cancelled, or its worker is to stop, and cause takes the verdict's place unless stdout is published
 * already.  all: what is committed on every outcome is not waited for either. */
void outputs_stop(struct outputs *outputs, enum cause cause, bool all);

/* Is a stream that goes to sink (opened, and not failed) to be committed after this outcome?  Of a sink of sinks: any member. */
bool outputs_wanted(const struct spec *spec, const struct sink *sink, bool is_stderr,
                    enum outcome outcome);
/* An attempt that runs will have this outcome: members of a sink of sinks that are not wanted then hold the others up no longer. */
void outputs_foresee(const struct spec *spec, struct sink *sink, bool is_stderr,
                     enum outcome outcome);

/* One stream's part of the record, from filter and sink. */
void outputs_record(struct outputs *outputs, bool is_stderr, struct record_stream *ret);
/* After on_ended: free the sinks. */
void outputs_close(struct outputs *outputs);

#endif
