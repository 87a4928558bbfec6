/* binding.h - what the jobs of a queue run, when it is the worker's configuration that says so and not the job.
 *
 * Whoever reaches a shared broker (Redis) can write jobs there.  So a job from there brings data, and the queue of mandor.yaml says
 * what is done with them: a command template, a warm pool, a Python program.  A command from a message needs `allow_exec: true`.
 *
 *     message ── binding_job() ──▶ job object, as `mandor add` makes it ── spec_from_json() ──▶ struct spec
 *
 * A placeholder fills a place in ONE argument: nothing is split, no shell sees it.
 *
 *     {data}         all of the data, as it was written {id} {queue} {name}   the job's own
 *     {data.url}     a member                         {{                    a brace
 *     {data.list.0}  an element
 *
 * Text goes in as it is, {"b64": …} as its bytes, numbers, booleans, arrays and objects as JSON.  A value that is not there or null is an error; so is
 * one that begins with '-' where its argument begins, because the program would take it for an option: write `./{data.x}` or `--in={data.x}`, or put the
 * argument "--" before it.  (Numbers and "-" alone are harmless.)
 *
 * Pure.  Any thread. */
#ifndef JOB_BINDING_H
#define JOB_BINDING_H

#include <jansson.h>

#include "base/err.h"
#include "base/macro.h"

/* The keys of a queue in mandor.yaml, borrowed; all zero = unbound. */
struct binding {
    const char *executor;       /* "exec", "pool", "python"; NULL = as the others say */
    const char *const *command; /* template, NULL-terminated; or NULL */
    const char *pool;           /* or NULL */
    const char *runtime;        /* of Python; NULL = the message's, else default */
    const char *code;           /* Python program; NULL = the message's */
    bool allow_exec;            /* messages may bring a command, and every job option with it */
    bool python_open; /* the runtime runs without a sandbox: then code never comes from a message */
};

/* What a message is for, for placeholders and for errors. */
struct binding_place {
    const char *id, *queue;
    const char *name; /* BullMQ's job name; NULL = none */
    /* The data as their producer wrote them, for {data}; NULL = as json_text() does. */
    const char *data_text;
};

/* Do the keys go together, is the template sound?  0 or -EINVAL, FAULT_CALLER; messages name the key. */
MUST_CHECK int binding_check(const struct binding *binding, struct mandor_err *err);

/* Does the queue itself say what to run? */
bool binding_is_bound(const struct binding *binding);

/* The job that a message asks for.  job: a job object of `mandor add` or of another producer.
 *
 * shared: it comes from where others can write: it may then hold data and what is harmless (priority, delay, attempts, backoff, unique,
 * timeouts, no_retry_exit_codes); of exec, pool and python only what the queue's binding allows.  Not shared: everything is taken as it
 * is, and the binding serves those that say nothing of what to run.
 * ret: new reference, to be read with the queue's defaults.  -EINVAL with *err says what was refused and what would allow it. */
MUST_CHECK int binding_job(const struct binding *binding, const json_t *job, bool shared,
                           const struct binding_place *place, json_t **ret, struct mandor_err *err);

/* The job for bare data of a shared broker (a BullMQ job's, a stream entry's `data`), to be merged into by the caller: only what to run is in
 * it.  With allow_exec, data that hold a command ("exec") are the job; unknown keys are left out, and what says its place in a queue:
 * that is not theirs to say. */
MUST_CHECK int binding_data(const struct binding *binding, const json_t *data,
                            const struct binding_place *place, json_t **ret,
                            struct mandor_err *err);

/* Those of a queue's defaults that a message may bring: what `mandor add` fills in for a shared broker.  New reference or NULL. */
json_t *binding_harmless(const json_t *defaults);

/* One template filled: array of arguments.  For tests and tools. */
MUST_CHECK int binding_fill(const char *const *command, const json_t *data,
                            const struct binding_place *place, json_t **ret,
                            struct mandor_err *err);

#endif
