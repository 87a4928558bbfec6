/* broker.h - a queue of jobs, wherever it lives.  For those who use one; broker_ops.h is for those who write one.
 *
 * Every operation is a request that the caller owns: fill `op`, its part of the union and `done`, submit it, leave it
 * alone until `done` runs on the loop thread.  Requests of one broker are carried out in the order in which they came in;
 * many may share one transaction.  A request that writes is durable when `done` runs with status 0.
 *
 *     caller ── broker_submit(req) ──▶ back end (its own thread or socket) ── done(req) ──▶ loop thread
 *
 * broker_wait() runs the loop until one request is done: that is how the command line uses a broker.
 */
#ifndef BROKER_BROKER_H
#define BROKER_BROKER_H

#include <jansson.h>
#include <uv.h>

#include "base/err.h"
#include "base/list.h"
#include "base/macro.h"
#include "job/record.h"
#include "job/spec.h"
#include "job/verdict.h"

struct broker;

enum broker_op {
    BROKER_ADD,   /* client: insert jobs */
    BROKER_LEASE, /* worker: take up to n jobs; some of them may be started in the same write */
    BROKER_START, /* worker: attempt := attempt + 1, written before anything runs */
    BROKER_RENEW, /* worker: extend the leases; hear of lost ones and of cancels */
    BROKER_BEGIN_SETTLE, /* worker: is the token still mine?  extends the lease */
    BROKER_SETTLE,       /* worker: write the end of an attempt, fenced */
    BROKER_GIVE_BACK,    /* worker: leased, never started: back as if nothing happened */
    BROKER_PHASE, /* worker: note phase and containment of an attempt (what a successor must empty) */
    BROKER_NOTE, /* worker: what a running job says of itself, for brokers whose other clients listen (broker_takes_notes()) */
    BROKER_RECOVER, /* worker: due delays → waiting, jobs of dead workers → put through their verdict, retention */
    BROKER_REGISTER, /* worker: announce name, liveness lock, base containment, queues */
    BROKER_UNREGISTER,
    BROKER_SHOW,   /* client: one record */
    BROKER_LIST,   /* client: records, paged */
    BROKER_OUTPUT, /* client: inline output of an attempt */
    BROKER_CANCEL,
    BROKER_RETRY,
    BROKER_REMOVE,
    BROKER_PAUSE, /* pause or resume a queue */
    BROKER_STATS, /* counts by queue and state, workers */
    BROKER_OPS
};

#define BROKER_ID_SIZE 200 /* of a job's id where it is not malloc'ed */

/* A job as a worker holds it. */
struct lease {
    char *id;        /* malloc'ed */
    char *queue;     /* malloc'ed */
    char *spec_text; /* malloc'ed JSON */
    /* spec_text is another system's data: the queue's binding says what to do with them. */
    bool bare;
    /* malloc'ed; what {id} stands for where ids are unique in a queue only; NULL = id. */
    char *own_id;
    char *name;   /* malloc'ed; what its producer called the job, or NULL */
    bool started; /* the lease was its BROKER_START as well: attempt is the token, run it now */
    /* The token once BROKER_START is done; before that the number of starts so far. */
    int64_t attempt;
    int64_t attempts_used, put_backs;
    /* How many it may have, when the broker alone says so; 0 = as the job or its queue says. */
    int64_t attempts;
    int64_t created_ms; /* wall clock */
};
void lease_done(struct lease *lease); /* free what it holds */

struct broker_req {
    enum broker_op op;
    int status;            /* 0 or -errno; set before done() */
    struct mandor_err err; /* why, when status < 0 */
    void (*done)(struct broker_req *req);
    void *data; /* the caller's */
    union {
        struct {
            const struct spec *const *specs; /* borrowed until done */
            size_t count;
            struct broker_added {
                char id[BROKER_ID_SIZE];
                bool existing; /* the unique key was taken: id is the other job's */
            } * added;         /* room for count, the caller's */
            bool served;       /* out: a live worker serves (all of) these queues */
        } add;
        struct {
            size_t want; /* jobs at most */
            /* Slots are free for so many of them: a broker for which it is cheaper writes their BROKER_START with the lease and
             * sets lease.started.  It may do so for fewer or for none (broker_ops.starts_leases says which kind it is); whoever
             * asked then starts the others one by one.  Never for a job whose cancel was asked for. */
            size_t start;
            /* Queues in the order of preference, each with its own bounds. */
            const struct lease_queue {
                const char *name;
                size_t max, start; /* of want, of start */
                /* What a job gets that does not say itself how many it may have; 0 = as it was added. */
                int64_t attempts;
            } * queues;
            size_t queue_count;   /* 0 = all queues that the broker has */
            struct lease *leases; /* out: room for want, the caller's; each ended by lease_done() */
            size_t count;         /* out */
            /* Out: ms until the next delayed job of these queues is due; -1 = none. */
            int64_t next_due_ms;
            /* Out: no job of these unpaused queues is waiting, active (anywhere) or due for retry. */
            bool drained;
        } lease;
        struct {
            const char *id;
            int64_t attempt; /* in: as leased; out: the token of this start */
            /* In: how many it may have, its queue's default included; 0 = as it was added. */
            int64_t attempts;
            /* Out: cancel was asked for before the start: do not run, settle as cancelled. */
            bool cancelled;
        } start;
        struct {
            const struct lease_ref {
                const char *id;
                int64_t attempt;
            } * refs; /* everything that this worker holds */
            size_t count;
            unsigned char *flags; /* out, room for count: RENEW_LOST, RENEW_CANCEL */
            /* Out: how long those that are not lost hold, counted from when this was submitted (so never too long). */
            int64_t left_ms;
        } renew;
        /* Asked before anything becomes visible outside of the record (I7).  Extends the lease; the commit ends within it. */
        struct {
            const char *id;
            int64_t attempt; /* -ESTALE: refused, no longer ours */
            /* Out: how long the lease holds, counted from when this was submitted (so never too long). */
            int64_t left_ms;
        } begin_settle;
        struct {
            const char *id, *queue;
            int64_t attempt; /* -ESTALE: refused, nothing was written */
            struct retry_plan plan;
            /* All that is kept of the attempt: record_attempt_text(), given back to record_json() when somebody asks.  NULL = nothing.
             * Then, for brokers whose other clients look for them in places of their own, two parts of it.  Borrowed until done. */
            const char *record;
            const struct verdict *verdict;
            const json_t *result; /* NULL = none */
            /* What it waits for, when it asked to be run again; NULL = it did not. */
            const json_t *again;
            int64_t started_ms, finished_ms; /* wall clock */
            const void *out, *errout; /* inline output of auto: sinks, borrowed; NULL = none */
            size_t out_len, errout_len;
            int64_t keep_ms;    /* retention of this state on this queue; 0 = for ever */
            int64_t keep_count; /* 0 = no bound */
        } settle;
        struct {
            const struct lease_ref *refs;
            size_t count;
        } give_back;
        struct {
            const char *id;
            int64_t attempt;
            const char *phase;       /* "running", "stopping", … */
            const char *containment; /* the slot's name (contain.h), NULL = unchanged */
        } phase;
        struct {
            /* No lease is checked: an attempt that has lost its own is told to stop. */
            const char *id;
            const char *kind; /* "progress", "data": value is JSON text; "log": text */
            const char *value;
        } note;
        struct {
            /* Empty a dead worker's containment; runs on the BROKER's thread.  0 = empty, -EAGAIN = not yet. */
            int (*empty)(const char *containment, void *arg);
            void *arg;
            size_t due, recovered, removed; /* out */
        } recover;
        struct {
            const char *worker;      /* unique name */
            const char *lock_path;   /* liveness lock (flock), held by worker and guard */
            const char *containment; /* base containments of the worker, as text (contain.h) */
            const char *queues;      /* JSON array text, [] = all */
            int64_t lease_ms;        /* how long a lease holds without renewal; 0 = 30 s */
            int64_t wait_ms; /* how long a server may take to answer; 0 = as for any request */
        } reg;
        struct {
            const char *id;
            json_t *record; /* out: record_json(), the caller's reference */
        } show;
        struct {
            const char *queue; /* NULL = all */
            int state;         /* enum job_state, -1 = all */
            const char *after; /* id of the last one of the page before; NULL = from the newest */
            size_t limit;
            json_t *records; /* out: array of record_json() */
        } list;
        struct {
            const char *id;
            int64_t attempt; /* 0 = the last one */
            bool want_stderr;
            char *bytes; /* out: malloc'ed; NULL when nothing is stored inline */
            size_t len;
            char *path; /* out: malloc'ed file path when the output is in a file; else NULL */
            int64_t attempt_out; /* out: which attempt */
            bool active;         /* out: that attempt is running now; worker names who */
            char worker[64];
        } output;
        struct {               /* cancel, retry, remove: by id, or by state of a queue */
            const char *id;    /* NULL: all of `state` (and queue) */
            const char *queue; /* NULL = all */
            int state;         /* enum job_state */
            size_t count;      /* out */
            char worker[64];   /* out, cancel: who runs it now; "" = nobody */
        } change;
        struct {
            const char *queue;
            bool paused;
        } pause;
        struct {
            /* Out: {"queues": {NAME: {waiting, delayed, active, completed, failed, cancelled, paused, oldest_waiting_ms}},
             * "workers": […]}. */
            json_t *stats;
        } stats;
    };
    struct list node; /* the broker's */
    void *own;        /* the broker's */
    int64_t submitted_ns;
};
#define RENEW_LOST   1
#define RENEW_CANCEL 2

/* Open the broker that url names ("sqlite:PATH", "streams://HOST"); its module is loaded where it is in one.
 *
 * loop: where done() runs; worker: this process leases jobs (it then holds the connection for long).
 * Returns 0, -EINVAL (unknown scheme or malformed, FAULT_CALLER) or what the back end says. */
MUST_CHECK int broker_open(const char *url, uv_loop_t *loop, bool worker, struct broker **ret,
                           struct mandor_err *err);
/* Is url of a known scheme?  No I/O.  0 or -EINVAL (FAULT_CALLER). */
MUST_CHECK int broker_check_url(const char *url, struct mandor_err *err);
/* Do other machines reach this broker too (Redis)?  Then what a job may run is the worker's to say: job/binding.h.  No I/O. */
bool broker_is_shared(const char *url);
/* Find out where url's broker keeps files on this machine and make <data_dir>/run (0700), before any thread or connection exists:
 * `work` takes its liveness lock there and only then forks the guard.  *ret_data_dir: malloc'ed, absolute. */
MUST_CHECK int broker_prepare(const char *url, char **ret_data_dir, struct mandor_err *err);
/* Everything submitted is carried out first; on_closed (NULL allowed) runs last, then the broker is gone. */
void broker_close(struct broker *broker, void (*on_closed)(void *arg), void *arg);

/* Can this job be added there?  An id of its own and `lifo` are not for all brokers, nor is each id and priority for those that have them.
 * No I/O.  0, or -EINVAL (FAULT_CALLER) with *err naming the option. */
MUST_CHECK int broker_check_spec(const struct broker *broker, const struct spec *spec,
                                 struct mandor_err *err);

void broker_submit(struct broker *broker, struct broker_req *req);
/* Submit and run the loop until it is done; returns req->status. */
int broker_wait(struct broker *broker, struct broker_req *req);

/* Does it want BROKER_NOTE? */
bool broker_takes_notes(const struct broker *broker);
/* Do its leases start jobs (lease.start)? */
bool broker_starts_leases(const struct broker *broker);
/* Is it worth having two BROKER_LEASE under way at once?  (It is elsewhere, and works for one while the jobs of the other run.) */
bool broker_leases_overlap(const struct broker *broker);
/* Is a job that brings no command its data alone, with no room for job options but those of spec_is_place()? */
bool broker_has_bare_data(const struct broker *broker);

/* Where this broker keeps files of jobs and workers on this machine: "<db>.d" for sqlite; for brokers elsewhere
 * a directory below $XDG_STATE_HOME/mandor.  Absolute; lives as long as the broker. */
const char *broker_data_dir(const struct broker *broker);

/* Call on_wake on the loop thread when another process committed a change that may concern a worker of ours: new jobs,
 * cancel, pause.  name: this worker; the socket is <data_dir>/run/<name>.sock (AF_UNIX datagrams, mode 0600). */
MUST_CHECK int broker_listen(struct broker *broker, const char *name, void (*on_wake)(void *arg),
                             void *arg, struct mandor_err *err);

#endif
