/* python.h - runtimes of Python in WebAssembly: each a fork server with Pyodide started in it, and copies of it that wait for jobs.
 *
 *   python_ask ─▶ (a copy is ready) ─▶ on_copy ─▶ copy_adopt ─▶ the copy is the asker's child: on_exited, on_empty ─▶ copy_close
 *          └───▶ on_refused: no copy can be had now (CAUSE_SPAWN)
 *
 * A runtime looks after itself: it starts its server, keeps spare copies warmed, replaces a server that is old or has
 * died, and after failing starts waits longer and longer.  A copy takes one job and ends, but with isolation `scope` it is
 * cleaned and takes the next one.  With isolation `instance` a server makes one copy and ends.  Loop thread only.
 */
#ifndef PYTHON_PYTHON_H
#define PYTHON_PYTHON_H

#include <jansson.h>
#include <uv.h>

#include "base/err.h"
#include "base/list.h"
#include "base/macro.h"
#include "child/child.h"
#include "child/nursery.h"
#include "job/verdict.h"
#include "python/runtime.h"

struct pythons;
struct python;
struct copy;

/* ---- all runtimes of a worker ---- */

MUST_CHECK int pythons_new(uv_loop_t *loop, struct nursery *nursery, struct pythons **ret);
/* Start, change and drain runtimes so that these are there; options are copied.  0 or -ENOMEM (some are as they were). */
MUST_CHECK int pythons_configure(struct pythons *pythons, const struct python_options *options);
/* NULL: no such runtime; then *err says which there are. */
struct python *pythons_find(struct pythons *pythons, const char *name, struct mandor_err *err);
/* [{"name": …, "state": …, "spares": …, …}], a new reference or NULL. */
json_t *pythons_json(const struct pythons *pythons);
/* Nobody may be waiting or have a copy.  Ends everything; frees. */
void pythons_close(struct pythons *pythons, void (*on_closed)(void *arg), void *arg);

const struct python_runtime *python_runtime(const struct python *python);

/* ---- asking for a copy ---- */

struct python_ask_events {
    void (*on_copy)(void *arg, struct copy *copy); /* copy_adopt() it at once */
    void (*on_refused)(void *arg, const struct verdict *verdict);
};

/* Embedded in its owner; fields are the runtime's. */
struct python_ask {
    struct list node; /* python->asks */
    struct python *python;
    struct copy *own; /* made for this one alone, when its limits need that */
    bool waiting, special;
    struct spec_limits limits;
    enum spec_limits_policy policy;
    const struct python_ask_events *events;
    void *arg;
};

/* limits: those that only a containment of its own can hold (cpu) need a copy of its own, which is not there yet; the others are set
 * on any copy by its owner.  Callbacks come later, never from inside. */
void python_ask(struct python *python, struct python_ask *ask, const struct spec_limits *limits,
                enum spec_limits_policy policy, const struct python_ask_events *events, void *arg);
/* Take it back.  true: no callback comes.  false: it is over. */
bool python_ask_withdraw(struct python_ask *ask);

/* ---- a copy ---- */

struct copy_events {
    void (*on_exited)(void *arg, const struct verdict *verdict);
    void (*on_empty)(void *arg);
    void (*on_kill_pending)(void *arg);
};

/* ret_pipes: the caller's from here on.  Its channel takes one job (u32le length, key, JSON) and answers in lines.
 * 0 or -errno (then the copy is ended, and on_exited comes). */
MUST_CHECK int copy_adopt(struct copy *copy, const struct copy_events *events, void *arg,
                          struct child_pipes *ret_pipes);
/* isolation scope: the job has said its end, its streams are read to the last byte; the copy is nobody's again.  reuse: it may take
 * another job. */
void copy_release(struct copy *copy, bool reuse);
struct child *copy_child(const struct copy *copy);
/* After on_empty. */
void copy_close(struct copy *copy);

#endif
