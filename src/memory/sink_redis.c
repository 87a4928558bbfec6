/* sink_redis.c - redis:…: chooses between entries of a stream and one value; what both share: contract in sink_redis.h.
 *
 * The state of the sink is a pointer to an object of the kind's own, whose first member is its ops table. */
#include "memory/sink_redis.h"

#include <stdio.h>
#include <sys/random.h>

#include "memory/entries.h"
#include "memory/parts.h"
#include "memory/value.h"

static struct redis_sink *base_of(const struct sink *sink)
{
    return *(struct redis_sink **)sink_state(sink);
}

static bool is_stream(const struct redis_sink *base)
{
    return base->target.kind == TARGET_STREAM;
}

int64_t redis_sink_commit_ms(struct redis_sink *base)
{
    return MAX(MIN(sink_commit_left_ms(base->sink), REDIS_SINK_MS), INT64_C(1));
}

void redis_sink_fail(struct redis_sink *base, int result, const struct mandor_err *err)
{
    if (base->result < 0)
        return;
    if (result == -EPROTO) /* the server's, where that of a framer accuses the job */
        result = -EIO;
    base->result = strstr(err->msg, "STALE ") != NULL ? -ESTALE : result;
    base->err = *err;
    if (strstr(base->err.msg, base->target.url.text) == NULL) /* else it is named already */
        (void)err_wrap(&base->err, result, "'%s'", base->target.url.text);
    base->err.code = base->result;
}

void redis_sink_given_up(struct redis_sink *base)
{
    struct mandor_err err;

    redis_sink_fail(base, err_set(&err, -ECANCELED, FAULT_REMOTE, "given up"), &err);
    if (!base->opening)
        return;
    base->opening = false;
    redis_sink_drop_calls(base);
    sink_answer(base->sink, base->result, &base->err);
}

static void on_closed(void *arg)
{
    struct redis_sink *base = arg;

    target_done(&base->target);
    free(base->fence);
    free(base->job);
    base->done(base);
}

void redis_sink_drop_calls(struct redis_sink *base)
{
    if (base->redis != NULL)
        redis_close(STEAL(base->redis), NULL, NULL);
}

/* A little less than the filter waits: the failure is then the server's reason, not that a time is over. */
static int64_t patience(int64_t sink_timeout_ms)
{
    return sink_timeout_ms == 0 ? INT64_C(1) << 40 : sink_timeout_ms - sink_timeout_ms / 8;
}

static int connect_to(struct redis_sink *base, int64_t sink_timeout_ms, struct mandor_err *err)
{
    char name[128];
    struct redis_options options = { .client_name = name,
                                     .patience_ms = patience(sink_timeout_ms) };

    (void)snprintf(name, sizeof name, "mandor-sink-%.60s", base->job);
    return redis_new(sink_loop(base->sink), &base->target.url, &options, &base->redis, err);
}

static void on_begun(void *arg, int result, const redisReply *reply, const struct mandor_err *err)
{
    struct redis_sink *base = arg;

    if (!base->opening || result == -ECANCELED)
        return; /* closed before */
    base->opening = false;
    if (result < 0)
        redis_sink_fail(base, result, err);
    sink_answer(base->sink, base->result, &base->err);
}

int redis_sink_open(struct redis_sink *base, struct sink *sink, const struct sink_target *target,
                    struct mandor_err *err)
{
    base->sink = sink;
    uint64_t nonce = 0;

    if (getrandom(&nonce, sizeof nonce, 0) != sizeof nonce)
        nonce = uv_hrtime();
    (void)snprintf(base->attempt, sizeof base->attempt, "%" PRId64, target->attempt);
    (void)snprintf(base->owner, sizeof base->owner, "%s.%016" PRIx64, base->attempt, nonce);
    if (asprintf(&base->job, "%s.%s", target->job_id == NULL ? "run" : target->job_id,
                 target->stream) < 0)
        base->job = NULL;
    int r = target_parse(target->url, &base->target, err);
    if (r < 0)
        return r;
    if (base->job != NULL)
        base->fence = target_own_key(&base->target, "fence", base->job);
    if (base->fence == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "open '%s'", base->target.url.text);
    if ((r = connect_to(base, target->patience_ms, err)) < 0)
        return r;
    const char *argv[] = { base->fence, base->owner };
    base->opening = true;
    redis_eval(base->redis, &script_begin, REDIS_AGAIN, REDIS_OPEN_MS, 1, ARRAY_LEN(argv), argv,
               NULL, on_begun, base);
    return 0;
}

/* ---- which of the two ---- */

/* The URL was checked as a whole (sink/url.h), and is read when it is opened. */
static int any_check(const char *rest, struct mandor_err *err)
{
    (void)rest, (void)err;
    return 0;
}

static void any_open(struct sink *sink, const struct sink_target *target, const char *rest)
{
    struct target parsed;
    struct mandor_err err;
    struct redis_sink **slot = sink_state(sink);

    int r = target_parse(target->url, &parsed, &err);
    bool stream = r == 0 && parsed.kind == TARGET_STREAM;
    target_done(&parsed);
    if (r == 0) {
        *slot = stream ? entries_new() : value_new();
        if (*slot == NULL)
            r = err_set(&err, -ENOMEM, FAULT_HOST, "open a sink on Redis");
    }
    if (r == 0)
        r = stream ? entries_open(*slot, sink, target, &err)
                   : value_open(*slot, sink, target, &err);
    if (r < 0)
        sink_answer(sink, r, &err);
}

static void any_write(struct sink *sink, const struct iovec *iov, int count, XXH3_state_t *hash)
{
    struct redis_sink *base = base_of(sink);

    if (is_stream(base))
        entries_write(base, iov, count, hash);
    else
        value_write(base, iov, count, hash);
}

static void any_prepare(struct sink *sink)
{
    struct redis_sink *base = base_of(sink);

    if (is_stream(base))
        entries_prepare(base);
    else
        value_prepare(base);
}

static void any_commit(struct sink *sink)
{
    struct redis_sink *base = base_of(sink);

    if (is_stream(base))
        entries_commit(base);
    else
        value_commit(base);
}

static void any_abort(struct sink *sink)
{
    struct redis_sink *base = base_of(sink);

    if (is_stream(base))
        entries_abort(base);
    else
        value_abort(base);
}

static void any_interrupt(struct sink *sink)
{
    struct redis_sink *base = base_of(sink);

    if (is_stream(base))
        entries_interrupt(base);
    else
        value_interrupt(base);
}

static void any_done(struct sink *sink)
{
    struct redis_sink *base = base_of(sink);

    if (base != NULL && base->redis != NULL)
        redis_close(STEAL(base->redis), on_closed, base);
    else if (base != NULL)
        on_closed(base);
}

static const char *any_target_text(const struct sink *sink)
{
    const struct redis_sink *base = base_of(sink);

    return base == NULL ? NULL : base->target.url.text;
}

const struct sink_ops sink_redis = {
    .scheme = "redis",
    .state_size = sizeof(struct redis_sink *),
    .publishes = true,
    .remote = true,
    .check = any_check,
    .open = any_open,
    .write = any_write,
    .prepare = any_prepare,
    .commit = any_commit,
    .abort = any_abort,
    .interrupt = any_interrupt,
    .done = any_done,
    .target_text = any_target_text,
};
