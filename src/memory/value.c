/* value.c - contract in value.h.
 *
 * Bytes are put at their place, so that a call may be made twice over a connection that broke.  The stage lives for an hour after the last
 * sign of life, which a job gives that writes nothing, too: what a crash leaves goes by itself. */
#include "memory/value.h"

#include <stdio.h>

#define KEEP_MS 10000
#define DROP_MS 2000 /* for the removal of a stage; what stays expires */

struct value {
    struct redis_sink base;
    /* A key of this sink alone: whoever else writes under the same job and attempt (`mandor run`, another broker's queue) has its own. */
    char *stage;
    int64_t len;
    uv_timer_t timer; /* a sign of life */
    bool timer_open;
    bool writing, preparing, committing, ended;
};

struct chunk {
    struct value *value;
    size_t bytes;
};

static struct value *of(struct redis_sink *base)
{
    return CONTAINER_OF(base, struct value, base);
}

/* A commit that failed leaves no stage behind, unless Redis is out of reach: then it expires. */
static void on_dropped_late(void *arg, int result, const redisReply *reply,
                            const struct mandor_err *err)
{
    struct redis_sink *base = arg;

    sink_answer(base->sink, base->result, &base->err);
}

static void refuse(struct value *value)
{
    struct redis_sink *base = &value->base;

    if (value->len > 0 && base->redis != NULL && redis_is_connected(base->redis))
        redis_callf(base->redis, REDIS_FIRST | REDIS_IN_TIME, DROP_MS, on_dropped_late, base,
                    "DEL %s", value->stage);
    else
        sink_answer(base->sink, base->result, &base->err);
}

static void on_published(void *arg, int result, const redisReply *reply,
                         const struct mandor_err *err)
{
    struct redis_sink *base = arg;

    if (result < 0) {
        redis_sink_fail(base, result, err);
        refuse(of(base));
        return;
    }
    sink_answer(base->sink, base->result, &base->err);
}

static void publish(struct value *value)
{
    struct redis_sink *base = &value->base;
    const struct target *target = &base->target;
    struct mandor_err err;
    char len[24];

    value->ended = true;
    if (base->result == 0 && !sink_may_publish(base->sink, &err))
        redis_sink_fail(base, err.code, &err);
    if (base->result < 0) {
        refuse(value);
        return;
    }
    (void)snprintf(len, sizeof len, "%" PRId64, value->len);
    const char *argv[] = { value->stage, target->key, base->fence,
                           base->owner,  len,         target->field == NULL ? "" : target->field };
    redis_eval(base->redis, &script_publish, REDIS_AGAIN | REDIS_IN_TIME,
               redis_sink_commit_ms(base), 3, ARRAY_LEN(argv), argv, NULL, on_published, base);
}

static void advance(struct value *value)
{
    struct redis_sink *base = &value->base;
    bool failed = base->result < 0;

    if (value->ended)
        return;
    if ((value->writing && (failed || base->flying < REDIS_WINDOW)) ||
        (value->preparing && (failed || base->calls == 0))) {
        struct mandor_err err = base->err;
        value->writing = value->preparing = false;
        sink_answer(base->sink, base->result, &err);
    } else if (value->committing && (failed || base->calls == 0)) {
        publish(value);
    }
}

static void on_stored(void *arg, int result, const redisReply *reply, const struct mandor_err *err)
{
    struct chunk *chunk = arg;
    struct value *value = chunk->value;

    value->base.flying -= chunk->bytes;
    value->base.calls--;
    free(chunk);
    if (result < 0)
        redis_sink_fail(&value->base, result, err);
    advance(value);
}

static void store(struct value *value, const void *bytes, size_t len)
{
    struct redis_sink *base = &value->base;
    struct mandor_err err;
    struct chunk *chunk = NULL;
    char at[24];

    if (value->len + (int64_t)len > VALUE_MAX) {
        redis_sink_fail(base,
                        err_set(&err, -EFBIG, FAULT_CALLER,
                                "longer than 512 MiB, the most that Redis takes as one value: "
                                "expected ?stream=KEY, or another sink"),
                        &err);
        return;
    }
    chunk = calloc(1, sizeof *chunk);
    if (chunk == NULL) {
        redis_sink_fail(base, err_set(&err, -ENOMEM, FAULT_HOST, "send"), &err);
        return;
    }
    *chunk = (struct chunk){ .value = value, .bytes = len };
    (void)snprintf(at, sizeof at, "%" PRId64, value->len);
    const char *argv[] = { value->stage, at, bytes };
    const size_t lens[] = { strlen(value->stage), strlen(at), len };
    base->flying += len;
    base->calls++;
    value->len += (int64_t)len;
    redis_eval(base->redis, &script_stage, REDIS_AGAIN, REDIS_SINK_MS, 1, ARRAY_LEN(argv), argv,
               lens, on_stored, chunk);
}

/* Where it fails the next one, or the next write, finds out what is wrong. */
static void on_kept(void *arg, int result, const redisReply *reply, const struct mandor_err *err)
{
    (void)arg, (void)result, (void)reply, (void)err;
}

static void on_timer(uv_timer_t *timer)
{
    struct value *value = CONTAINER_OF(timer, struct value, timer);

    if (value->len > 0 && !value->ended && value->base.redis != NULL &&
        redis_is_up(value->base.redis))
        redis_callf(value->base.redis, REDIS_AGAIN | REDIS_IN_TIME, KEEP_MS, on_kept, NULL,
                    "EXPIRE %s " STAGE_SECONDS, value->stage);
}

void value_write(struct redis_sink *base, const struct iovec *iov, int count, XXH3_state_t *hash)
{
    struct value *value = of(base);

    for (int i = 0; i < count && base->result == 0; i++) {
        if (iov[i].iov_len == 0)
            continue;
        if (hash != NULL)
            (void)XXH3_64bits_update(hash, iov[i].iov_base, iov[i].iov_len);
        store(value, iov[i].iov_base, iov[i].iov_len);
    }
    value->writing = true;
    advance(value);
}

void value_prepare(struct redis_sink *base)
{
    of(base)->preparing = true;
    advance(of(base));
}

void value_commit(struct redis_sink *base)
{
    of(base)->committing = true;
    advance(of(base));
}

static void on_dropped(void *arg, int result, const redisReply *reply, const struct mandor_err *err)
{
    struct redis_sink *base = arg;

    sink_answer(base->sink, 0, NULL); /* what stays expires */
}

void value_abort(struct redis_sink *base)
{
    struct value *value = of(base);

    value->ended = true;
    if (value->len > 0 && base->redis != NULL && redis_is_connected(base->redis))
        redis_callf(base->redis, REDIS_FIRST | REDIS_IN_TIME, DROP_MS, on_dropped, base, "DEL %s",
                    value->stage);
    else
        sink_answer(base->sink, 0, NULL);
}

void value_interrupt(struct redis_sink *base)
{
    redis_sink_given_up(base);
    advance(of(base));
}

/* ---- opening and closing ---- */

static void on_timer_closed(uv_handle_t *handle)
{
    struct value *value = CONTAINER_OF(handle, struct value, timer);

    free(value->stage);
    free(value);
}

static void done(struct redis_sink *base)
{
    struct value *value = of(base);

    if (value->timer_open)
        uv_close((uv_handle_t *)&value->timer, on_timer_closed);
    else
        on_timer_closed((uv_handle_t *)&value->timer);
}

struct redis_sink *value_new(void)
{
    struct value *value = calloc(1, sizeof *value);

    if (value == NULL)
        return NULL;
    value->base.done = done;
    return &value->base;
}

int value_open(struct redis_sink *base, struct sink *sink, const struct sink_target *target,
               struct mandor_err *err)
{
    struct value *value = of(base);
    char *key = NULL;

    (void)uv_timer_init(sink_loop(sink), &value->timer);
    (void)uv_timer_start(&value->timer, on_timer, KEEP_MS, KEEP_MS);
    value->timer_open = true;
    int r = redis_sink_open(base, sink, target, err);
    if (r < 0)
        return r;
    if (asprintf(&key, "%s.%s", base->job, base->owner) >= 0) {
        value->stage = target_own_key(&base->target, "stage", key);
        free(key);
    }
    return value->stage == NULL ? err_set(err, -ENOMEM, FAULT_HOST, "open a sink on Redis") : 0;
}
