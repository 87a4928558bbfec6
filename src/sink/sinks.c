/* sinks.c - the registry of sinks and the one state machine around them: contract in sink.h.
 *
 * One call is open in a back end at a time.  An end (commit or abort) that is asked for meanwhile waits for it.  An answer that
 * comes before the call has returned is kept and delivered from an idle handle, in the loop's next turn.
 */
#include <stdatomic.h>

#include "base/clock.h"
#include "base/hide.h"
#include "base/module.h"
#include "loop/work.h"
#include "sink/sink_ops.h"
#include "sink/url.h"

#define SINK_MAGIC 0x53494e4bu

enum call { CALL_NONE, CALL_OPEN, CALL_WRITE, CALL_PREPARE, CALL_COMMIT, CALL_ABORT };
enum ending { END_NONE, END_COMMIT, END_ABORT };
/* Of the step that makes a commit visible.  The back end's thread begins it, the owner forbids it: whoever is first. */
enum publishing { PUBLISH_OPEN, PUBLISH_BEGUN, PUBLISH_FORBIDDEN };

struct sink {
    uint32_t magic;
    const struct sink_ops *ops;
    uv_loop_t *loop;
    uv_idle_t idle; /* delivers what was answered too early */
    enum call call; /* open in the back end */
    bool in_call;   /* its function has not returned yet */
    bool answered;  /* the answer below waits for delivery */
    bool lent;      /* the descriptor is used directly */
    bool opened;
    bool commits_always;
    bool prepared;         /* sink_prepare(): nothing is written any more */
    bool ended;            /* the back end has committed or aborted */
    bool gave_up;          /* sink_give_up(), sink_revoke() */
    atomic_bool abandoned; /* nobody wants what is being written any more; read by pool threads */
    atomic_int publishing; /* enum publishing */
    atomic_int_least64_t until_boot_ms;
    bool done_early;  /* the end's (or prepare's) answer is due without its call */
    bool closed;      /* the owner has gone */
    enum ending want; /* asked for by the owner */
    int broken;       /* the first failure, -errno: nothing but abort follows */
    struct mandor_err broken_err;
    int result;
    struct mandor_err err;
    sink_done_fn *on_opened, *on_written, *on_prepared, *on_done;
    void *opened_arg, *written_arg, *prepared_arg, *done_arg;
    max_align_t state[]; /* ops->state_size bytes */
};

static const struct sink_ops *const sinks[] = { &sink_auto, &sink_file, &sink_null, &sink_inherit };

/* The back end of url, *ret_rest behind its colon; NULL with *err when there is none. */
static const struct sink_ops *lookup(const char *url, const char **ret_rest, struct mandor_err *err)
{
    size_t len = strcspn(url, ":");

    if (url[len] == ':' && module_has("sink", url)) {
        *ret_rest = url + len + 1;
        return module_part("sink", url, err);
    }
    for (size_t i = 0; i < ARRAY_LEN(sinks) && url[len] == ':'; i++) {
        if (strlen(sinks[i]->scheme) == len && memcmp(sinks[i]->scheme, url, len) == 0) {
            *ret_rest = url + len + 1;
            return sinks[i];
        }
    }
    SCOPED_FREE char *shown = hide_password(url);
    (void)err_set(
        err, -EINVAL, FAULT_CALLER,
        "unknown sink '%s': expected auto:, file:/PATH, null:, inherit:, s3://BUCKET/KEY, "
        "http(s)://HOST/PATH, redis[+tls]://HOST?stream=KEY or memcached://HOST/KEY",
        shown != NULL ? shown : "?");
    return NULL;
}

int sink_check_url(const char *url, struct mandor_err *err)
{
    const char *rest;
    struct mandor_err unused;

    int r = sink_url_check(url, err); /* without loading what serves it */
    if (r != -ENOENT)
        return r;
    const struct sink_ops *ops = lookup(url, &rest, err != NULL ? err : (err = &unused));
    return ops == NULL ? err->code : ops->check(rest, err);
}

void *sink_state(const struct sink *sink)
{
    OBJ_CHECK(sink, SINK_MAGIC);
    return (void *)(uintptr_t)sink->state;
}

uv_loop_t *sink_loop(const struct sink *sink)
{
    OBJ_CHECK(sink, SINK_MAGIC);
    return sink->loop;
}

static void on_idle_closed(uv_handle_t *handle)
{
    struct sink *sink = CONTAINER_OF(handle, struct sink, idle);

    OBJ_FINI(sink);
    free(sink);
}

static void destroy(struct sink *sink)
{
    sink->ops->done(sink);
    uv_close((uv_handle_t *)&sink->idle, on_idle_closed);
}

static void on_idle(uv_idle_t *idle);

static void deliver_later(struct sink *sink)
{
    (void)uv_idle_start(&sink->idle, on_idle); /* cannot fail: the callback is not NULL */
}

/* Enter the back end for one call. */
static void begin(struct sink *sink, enum call call, void (*fn)(struct sink *sink))
{
    BUG_ON(sink->call != CALL_NONE);
    sink->call = call;
    sink->in_call = true;
    fn(sink);
    sink->in_call = false;
}

static bool in_flight(const struct sink *sink)
{
    return sink->call != CALL_NONE || sink->lent;
}

/* Start what waited for the open call to end. */
static void advance(struct sink *sink)
{
    if (in_flight(sink) || sink->done_early)
        return;
    if (sink->closed && !sink->ended && sink->want == END_NONE)
        sink->want = END_ABORT;
    if (sink->want != END_NONE && !sink->ended) {
        bool commit = sink->want == END_COMMIT && sink->broken == 0;
        begin(sink, commit ? CALL_COMMIT : CALL_ABORT,
              commit ? sink->ops->commit : sink->ops->abort);
    } else if (sink->closed) {
        destroy(sink);
    }
}

static void break_sink(struct sink *sink, int result, const struct mandor_err *err)
{
    if (sink->broken != 0)
        return;
    sink->broken = result;
    if (err != NULL)
        sink->broken_err = *err;
    else
        (void)err_set(&sink->broken_err, result, FAULT_HOST, "%s: sink", sink->ops->scheme);
}

/* The end's answer for the owner: a commit of a broken sink was carried out as an abort. */
static void answer_end(struct sink *sink, int result, const struct mandor_err *err)
{
    sink_done_fn *fn = STEAL(sink->on_done);

    if (fn == NULL)
        return;
    if (sink->want == END_COMMIT && sink->broken != 0)
        fn(sink->done_arg, sink->broken, &sink->broken_err);
    else
        fn(sink->done_arg, result, err);
}

/* For who asked for something that nobody waits for, or that needs nothing. */
static void answer_early(struct sink *sink)
{
    sink_done_fn *fn = STEAL(sink->on_prepared);

    if (fn != NULL)
        fn(sink->prepared_arg, sink->broken, &sink->broken_err);
    else
        answer_end(sink, 0, NULL);
}

/* Hand the kept answer to who asked.  The callback may ask for more or close the sink. */
static void deliver(struct sink *sink)
{
    enum call call = sink->call;
    int result = sink->result;
    struct mandor_err err = sink->err;
    sink_done_fn *fn;

    sink->answered = false;
    sink->call = CALL_NONE;
    if (result < 0 && (call == CALL_OPEN || call == CALL_WRITE || call == CALL_PREPARE))
        break_sink(sink, result, &err);
    sink->in_call = true; /* a request from inside of the callback starts in advance() below */
    switch (call) {
    case CALL_OPEN:
        sink->opened = result == 0;
        sink->ended = result < 0; /* a failed open leaves nothing to end */
        fn = STEAL(sink->on_opened);
        if (fn != NULL && !sink->closed)
            fn(sink->opened_arg, result, &err);
        if (sink->ended && sink->want != END_NONE) { /* asked for meanwhile */
            sink->done_early = true;
            deliver_later(sink);
        }
        break;
    case CALL_WRITE:
        fn = STEAL(sink->on_written);
        fn(sink->written_arg, result, &err);
        break;
    case CALL_PREPARE:
        fn = STEAL(sink->on_prepared);
        if (fn != NULL)
            fn(sink->prepared_arg, result, &err);
        break;
    case CALL_COMMIT:
    case CALL_ABORT:
        sink->ended = true;
        answer_end(sink, result, &err);
        break;
    case CALL_NONE:
        BUG("sink: an answer without a call");
    }
    sink->in_call = false;
}

static void on_idle(uv_idle_t *idle)
{
    struct sink *sink = CONTAINER_OF(idle, struct sink, idle);
    OBJ_CHECK(sink, SINK_MAGIC);

    (void)uv_idle_stop(idle);
    if (sink->done_early) {
        sink->done_early = false;
        sink->in_call = true;
        answer_early(sink);
        sink->in_call = false;
    }
    if (sink->answered)
        deliver(sink);
    advance(sink);
}

void sink_answer(struct sink *sink, int result, const struct mandor_err *err)
{
    OBJ_CHECK(sink, SINK_MAGIC);
    BUG_ON(sink->call == CALL_NONE || sink->answered);
    sink->result = result;
    if (result < 0 && err != NULL)
        sink->err = *err;
    else
        err_clear(&sink->err);

    sink->answered = true;
    if (sink->in_call) {
        deliver_later(sink);
    } else {
        deliver(sink);
        advance(sink);
    }
}

int sink_open_with(uv_loop_t *loop, const struct sink_ops *ops, const struct sink_target *target,
                   const char *rest, sink_done_fn *on_opened, void *arg, struct sink **ret,
                   struct mandor_err *err)
{
    int r = ops->check(rest, err);
    if (r < 0)
        return r;

    struct sink *sink = calloc(1, sizeof *sink + ops->state_size);
    if (sink == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "open sink '%s:'", ops->scheme);

    sink->magic = SINK_MAGIC;
    sink->ops = ops;
    sink->loop = loop;
    sink->on_opened = on_opened;
    sink->opened_arg = arg;
    sink->commits_always = ops->commits_always || str_eq(target->stream, "stderr");
    atomic_init(&sink->until_boot_ms, SINK_NO_DEADLINE);
    (void)uv_idle_init(loop, &sink->idle);
    *ret = sink;
    sink->call = CALL_OPEN;
    sink->in_call = true;
    ops->open(sink, target, rest);
    sink->in_call = false;
    return 0;
}

int sink_open(uv_loop_t *loop, const struct sink_target *target, sink_done_fn *on_opened, void *arg,
              struct sink **ret, struct mandor_err *err)
{
    const char *rest;
    struct mandor_err unused;
    const struct sink_ops *ops = lookup(target->url, &rest, err != NULL ? err : (err = &unused));

    return ops == NULL ? err->code
                       : sink_open_with(loop, ops, target, rest, on_opened, arg, ret, err);
}

void sink_write(struct sink *sink, const struct iovec *iov, int count, XXH3_state_t *hash,
                sink_done_fn *on_written, void *arg)
{
    OBJ_CHECK(sink, SINK_MAGIC);
    BUG_ON(!sink->opened || in_flight(sink) || sink->want != END_NONE || sink->broken != 0 ||
           sink->prepared);
    sink->on_written = on_written;
    sink->written_arg = arg;
    sink->call = CALL_WRITE;
    bool nested = sink->in_call;
    sink->in_call = true;
    sink->ops->write(sink, iov, count, hash);
    sink->in_call = nested;
}

static int revoked(const struct sink *sink, int code, struct mandor_err *err)
{
    return err_set(err, code, FAULT_REMOTE, "sink '%s': %s before the output could be published",
                   sink->ops->scheme, code == -ETIME ? "the lease ran out" : "the job was stopped");
}

bool sink_abandoned(struct sink *sink)
{
    return atomic_load_explicit(&sink->abandoned, memory_order_relaxed);
}

static void interrupt(struct sink *sink)
{
    if (sink->call == CALL_NONE || sink->call == CALL_ABORT || sink->answered ||
        sink->ops->interrupt == NULL)
        return;
    bool nested = sink->in_call; /* the answer comes later, not from inside of this */
    sink->in_call = true;
    sink->ops->interrupt(sink);
    sink->in_call = nested;
}

static void end(struct sink *sink, enum ending want, sink_done_fn *on_done, void *arg)
{
    OBJ_CHECK(sink, SINK_MAGIC);
    BUG_ON(sink->want != END_NONE || sink->closed);
    sink->want = want;
    sink->on_done = on_done;
    sink->done_arg = arg;
    if (want == END_ABORT) {
        atomic_store(&sink->abandoned, true);
        interrupt(sink);
    }
    if (sink->ended || (sink->gave_up && in_flight(sink) && !sink->answered)) {
        sink->done_early = true; /* nothing to end, or nobody can wait for it */
        deliver_later(sink);
    } else if (!sink->in_call) {
        advance(sink);
    }
}

void sink_prepare(struct sink *sink, sink_done_fn *on_prepared, void *arg)
{
    OBJ_CHECK(sink, SINK_MAGIC);
    BUG_ON(!sink->opened || sink->want != END_NONE || sink->prepared);
    sink->prepared = true;
    sink->on_prepared = on_prepared;
    sink->prepared_arg = arg;
    if (sink->ops->prepare == NULL || sink->broken != 0 || in_flight(sink)) {
        sink->done_early = true; /* what is in flight can only be something given up */
        deliver_later(sink);
    } else {
        bool nested = sink->in_call;
        sink->call = CALL_PREPARE;
        sink->in_call = true;
        sink->ops->prepare(sink);
        sink->in_call = nested;
    }
}

void sink_commit(struct sink *sink, int64_t until_boot_ms, sink_done_fn *on_done, void *arg)
{
    atomic_store(&sink->until_boot_ms, until_boot_ms);
    end(sink, END_COMMIT, on_done, arg);
}

void sink_extend(struct sink *sink, int64_t until_boot_ms)
{
    OBJ_CHECK(sink, SINK_MAGIC);
    atomic_store(&sink->until_boot_ms, until_boot_ms);
    if (sink->ops->extend != NULL && sink->call == CALL_COMMIT)
        sink->ops->extend(sink, until_boot_ms);
}

int64_t sink_commit_left_ms(struct sink *sink)
{
    int64_t until = atomic_load(&sink->until_boot_ms);

    return until == SINK_NO_DEADLINE ? INT64_MAX : until - clock_boot_ms();
}

bool sink_may_publish(struct sink *sink, struct mandor_err *err)
{
    int seen = PUBLISH_OPEN;

    if (sink_commit_left_ms(sink) <= 0) {
        (void)revoked(sink, -ETIME, err);
        return false;
    }
    if (atomic_compare_exchange_strong(&sink->publishing, &seen, PUBLISH_BEGUN) ||
        (seen == PUBLISH_BEGUN && !sink_abandoned(sink)))
        return true;
    (void)revoked(sink, -ECANCELED, err);
    return false;
}

void sink_abort(struct sink *sink, sink_done_fn *on_done, void *arg)
{
    end(sink, END_ABORT, on_done, arg);
}

/* Nobody waits for what is in flight.  false: its last step is under way, and must be waited for. */
static bool let_go(struct sink *sink, const struct mandor_err *err)
{
    int seen = PUBLISH_OPEN;

    if (!atomic_compare_exchange_strong(&sink->publishing, &seen, PUBLISH_FORBIDDEN) &&
        seen == PUBLISH_BEGUN)
        return false;
    sink->gave_up = true;
    atomic_store(&sink->abandoned, true);
    break_sink(sink, err->code, err);
    interrupt(sink);
    return true;
}

void sink_give_up(struct sink *sink)
{
    struct mandor_err err;

    OBJ_CHECK(sink, SINK_MAGIC);
    (void)err_set(&err, -ETIMEDOUT, FAULT_REMOTE, "sink '%s' does not answer", sink->ops->scheme);
    (void)let_go(sink, &err);
}

void sink_revoke(struct sink *sink, int code)
{
    struct mandor_err err;

    OBJ_CHECK(sink, SINK_MAGIC);
    if (sink->ops->revoke != NULL) {
        bool nested = sink->in_call;
        sink->in_call = true;
        sink->ops->revoke(sink, code);
        sink->in_call = nested;
        return;
    }
    (void)revoked(sink, code, &err);
    if (sink->ended || sink->answered)
        return;
    if (!let_go(sink, &err)) {
        atomic_store(&sink->abandoned, true); /* its answer is waited for, but it is not repeated */
        return;
    }
    if (sink->on_prepared != NULL || sink->on_done != NULL) {
        sink->done_early = true;
        deliver_later(sink);
    }
}

void sink_close(struct sink *sink)
{
    if (sink == NULL)
        return;
    OBJ_CHECK(sink, SINK_MAGIC);
    BUG_ON(sink->closed);
    sink->closed = true;
    if (sink->want != END_COMMIT)
        atomic_store(&sink->abandoned, true);
    sink->on_opened = sink->on_prepared = sink->on_done = NULL;
    sink->done_early = false;
    if (!sink->in_call)
        advance(sink);
}

int sink_splice_fd(const struct sink *sink)
{
    OBJ_CHECK(sink, SINK_MAGIC);
    return sink->ops->splice_fd == NULL ? -1 : sink->ops->splice_fd(sink);
}

int sink_write_fd(const struct sink *sink)
{
    OBJ_CHECK(sink, SINK_MAGIC);
    return sink->ops->write_fd == NULL ? -1 : sink->ops->write_fd(sink);
}

uint64_t sink_device(const struct sink *sink)
{
    OBJ_CHECK(sink, SINK_MAGIC);
    return sink->ops->device == NULL ? WORK_CPU : sink->ops->device(sink);
}

void sink_lend(struct sink *sink)
{
    OBJ_CHECK(sink, SINK_MAGIC);
    BUG_ON(!sink->opened || in_flight(sink) || sink->want != END_NONE || sink->broken != 0);
    sink->lent = true;
}

void sink_spliced(struct sink *sink, int64_t bytes, int result)
{
    OBJ_CHECK(sink, SINK_MAGIC);
    BUG_ON(!sink->lent);
    sink->lent = false;
    if (result < 0)
        break_sink(sink, result, NULL);
    if (!sink->in_call)
        advance(sink);
}

const char *sink_kind(const struct sink *sink)
{
    OBJ_CHECK(sink, SINK_MAGIC);
    return sink->ops->scheme;
}

const char *sink_target_text(const struct sink *sink)
{
    OBJ_CHECK(sink, SINK_MAGIC);
    return sink->ops->target_text == NULL ? NULL : sink->ops->target_text(sink);
}

bool sink_publishes(const struct sink *sink)
{
    OBJ_CHECK(sink, SINK_MAGIC);
    return sink->ops->publishes_now == NULL ? sink->ops->publishes : sink->ops->publishes_now(sink);
}

const void *sink_inline(const struct sink *sink, size_t *ret_len)
{
    OBJ_CHECK(sink, SINK_MAGIC);
    *ret_len = 0;
    return sink->ops->inline_bytes == NULL ? NULL : sink->ops->inline_bytes(sink, ret_len);
}

bool sink_is_remote(const struct sink *sink)
{
    OBJ_CHECK(sink, SINK_MAGIC);
    return sink->ops->remote;
}

bool sink_commits_always(const struct sink *sink)
{
    OBJ_CHECK(sink, SINK_MAGIC);
    return sink->commits_always;
}
