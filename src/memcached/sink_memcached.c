/* sink_memcached.c - memcached://HOST[:PORT]/KEY: contract of the sink in sink_ops.h; form of what it writes in items.h.
 *
 * One buffer of a part's size; each step is one piece of work on the pool and one sink_answer().  A key
 * beside the value says which attempt has begun last; it and the value are set only in place of what was read (CAS), so that a lower attempt
 * never takes the place of what a higher one has published. */
#include <stdio.h>
#include <sys/random.h>
#include <xxhash.h>

#include "base/log.h"
#include "loop/work.h"
#include "memcached/items.h"
#include "sink/sink_ops.h"
#include "sink/url.h"

#define RACES_MAX 10 /* for one key: more is somebody who sets it all the time */

struct state {
    struct sink *sink;
    struct work work;
    struct items *items;
    char *url, *prefix, *fence;
    int64_t attempt;
    struct buf part;
    int64_t parts, bytes;
    bool sent;                /* the value was, whatever came of it */
    struct manifest replaced; /* what was in its place, when that had parts */
    XXH3_state_t *hash;
    /* The write in flight. */
    const struct iovec *iov;
    int iov_count;
    size_t iov_at;
    XXH3_state_t *their_hash;
    int (*run)(struct state *state); /* on the pool */
    bool more;                       /* after it: take more of the write */
    int result;
    struct mandor_err err;
};

static void on_run(struct work *work)
{
    struct state *state = CONTAINER_OF(work, struct state, work);

    state->result = state->run(state);
}

static void take(struct state *state);

static void after_run(struct work *work)
{
    struct state *state = CONTAINER_OF(work, struct state, work);

    if (state->more && state->result == 0)
        take(state);
    else
        sink_answer(state->sink, state->result, &state->err);
}

static void start(struct state *state, int (*run)(struct state *state), bool more)
{
    state->run = run;
    state->more = more;
    work_submit(sink_loop(state->sink), &state->work, items_device(state->items), on_run,
                after_run);
}

static char *part_key(const struct state *state, int64_t number)
{
    char *key = NULL;

    return asprintf(&key, "%s.%" PRId64, state->prefix, number) < 0 ? NULL : key;
}

/* ---- steps on the pool ---- */

/* -ESTALE: a later attempt than ours has begun; else the token of the note that was found. */
static int check_fence(struct state *state, uint64_t *ret_token)
{
    SCOPED_BUF text = { 0 };
    uint32_t flags;

    int r = items_gets(state->items, state->fence, &text, &flags, ret_token, &state->err);
    if (r < 0 && r != -ENOENT)
        return r;
    if (r == 0 && text.len > 0 && strtoll(text.data, NULL, 10) > state->attempt)
        return err_set(&state->err, -ESTALE, FAULT_CALLER, "'%s': attempt %s has begun since",
                       state->url, text.data);
    return 0;
}

/* Others get between, or the connection breaks before the answer: look again. */
static int with_token(struct state *state, int (*step)(struct state *state))
{
    int r = -EEXIST;

    for (int i = 0, lost = 0; i < RACES_MAX && (r == -EEXIST || (r == -ECONNRESET && lost < 3));
         i++) {
        r = step(state);
        lost += r == -ECONNRESET;
    }
    return r;
}

static int note_attempt(struct state *state)
{
    char own[24];
    uint64_t token;

    int r = check_fence(state, &token);
    if (r < 0)
        return r;
    (void)snprintf(own, sizeof own, "%" PRId64, state->attempt);
    return items_replace(state->items, state->fence, own, strlen(own), 0, token, &state->err);
}

static int run_open(struct state *state)
{
    return with_token(state, note_attempt);
}

static int run_part(struct state *state)
{
    SCOPED_FREE char *key = part_key(state, state->parts);
    if (key == NULL)
        return err_set(&state->err, -ENOMEM, FAULT_HOST, "write '%s'", state->url);

    int r = items_set(state->items, key, state->part.data, state->part.len, 0, ITEM_STAGE_SECONDS,
                      &state->err);
    if (r == 0) {
        state->parts++;
        buf_clear(&state->part);
    }
    return r;
}

static void delete_parts(struct state *state, const char *prefix, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        char *key = NULL;
        if (asprintf(&key, "%s.%" PRId64, prefix, i) >= 0)
            items_delete(state->items, key);
        free(key);
    }
}

/* The parts are to stay; from here on only the manifest is missing. */
static int run_prepare(struct state *state)
{
    int r = state->parts > 0 && state->part.len > 0 ? run_part(state) : 0;

    for (int64_t i = 0; r == 0 && i < state->parts; i++) {
        SCOPED_FREE char *key = part_key(state, i);
        r = key == NULL ? err_set(&state->err, -ENOMEM, FAULT_HOST, "write '%s'", state->url)
                        : items_touch(state->items, key, 0, &state->err);
    }
    return r;
}

/* In place of the value that is there; replaced: what that was, when it had parts. */
static int put_value(struct state *state, uint64_t token)
{
    const char *key = items_key(state->items);
    struct manifest manifest = { .parts = state->parts,
                                 .bytes = state->bytes,
                                 .xxh3 = XXH3_64bits_digest(state->hash),
                                 .prefix = state->prefix };

    if (state->parts == 0)
        return items_replace(state->items, key, state->part.data, state->part.len, 0, token,
                             &state->err);
    SCOPED_FREE char *text = manifest_text(&manifest);
    if (text == NULL)
        return err_set(&state->err, -ENOMEM, FAULT_HOST, "write '%s'", state->url);
    return items_replace(state->items, key, text, strlen(text), ITEM_MANIFEST, token, &state->err);
}

/* Is what is there what we have set?  Asked when the answer to that was lost. */
static bool is_ours(const struct state *state, const struct buf *found, uint32_t flags,
                    const struct manifest *manifest)
{
    if (!state->sent)
        return false;
    if (state->parts > 0)
        return manifest->prefix != NULL && str_eq(manifest->prefix, state->prefix);
    return flags == 0 && found->len == state->part.len &&
           (found->len == 0 || memcmp(found->data, state->part.data, found->len) == 0);
}

/* Set it in place of what is there, whose parts go then. */
static int replace(struct state *state, uint64_t token, struct manifest *adopt_there)
{
    if (!sink_may_publish(state->sink, &state->err)) {
        free(adopt_there->prefix);
        return state->err.code;
    }
    free(state->replaced.prefix);
    state->replaced = *adopt_there;
    state->sent = true;
    items_wait_ms(state->items, sink_commit_left_ms(state->sink));
    return put_value(state, token);
}

/* The value is read before the fence: a later attempt that publishes behind the look at the fence has changed the value by then, and ours is
 * not set in its place. */
static int publish(struct state *state)
{
    SCOPED_BUF there = { 0 };
    struct manifest manifest = { 0 };
    uint32_t flags = 0;
    uint64_t token, unused;

    int r = items_gets(state->items, items_key(state->items), &there, &flags, &token, &state->err);
    if (r < 0 && r != -ENOENT)
        return r;
    if (r == 0 && flags == ITEM_MANIFEST &&
        manifest_parse(there.data, there.len, &manifest) == -ENOMEM)
        return err_set(&state->err, -ENOMEM, FAULT_HOST, "write '%s'", state->url);
    bool ours = r == 0 && is_ours(state, &there, flags, &manifest);
    r = ours ? 0 : check_fence(state, &unused);
    if (ours || r < 0)
        free(manifest.prefix);
    else
        r = replace(state, token, &manifest);
    if (r == 0 && state->replaced.prefix != NULL)
        delete_parts(state, state->replaced.prefix, state->replaced.parts);
    return r;
}

static int run_commit(struct state *state)
{
    int r = run_prepare(state);

    if (r == 0)
        r = with_token(state, publish);
    if (r < 0)
        delete_parts(state, state->prefix, state->parts);
    return r;
}

static int run_abort(struct state *state)
{
    items_wait_ms(state->items, 1000);
    delete_parts(state, state->prefix, state->parts);
    return 0;
}

/* ---- the sink's calls ---- */

/* Copy until the part is full and more is to come: what fits into one item has no parts. */
static void take(struct state *state)
{
    while (state->iov_count > 0) {
        size_t left = state->iov->iov_len - state->iov_at;
        if (left == 0) {
            state->iov++;
            state->iov_count--;
            state->iov_at = 0;
            continue;
        }
        if (state->part.len == ITEM_MAX) {
            start(state, run_part, true);
            return;
        }
        const unsigned char *from = (const unsigned char *)state->iov->iov_base + state->iov_at;
        size_t len = MIN(left, ITEM_MAX - state->part.len);
        if (buf_add(&state->part, from, len) < 0) {
            int r = err_set(&state->err, -ENOMEM, FAULT_HOST, "write '%s'", state->url);
            sink_answer(state->sink, r, &state->err);
            return;
        }
        (void)XXH3_64bits_update(state->hash, from, len);
        if (state->their_hash != NULL)
            (void)XXH3_64bits_update(state->their_hash, from, len);
        state->bytes += (int64_t)len;
        state->iov_at += len;
    }
    sink_answer(state->sink, 0, NULL);
}

static void memcached_write(struct sink *sink, const struct iovec *iov, int count,
                            XXH3_state_t *hash)
{
    struct state *state = sink_state(sink);

    state->iov = iov;
    state->iov_count = count;
    state->iov_at = 0;
    state->their_hash = hash;
    take(state);
}

static void memcached_prepare(struct sink *sink)
{
    start(sink_state(sink), run_prepare, false);
}

static void memcached_commit(struct sink *sink)
{
    start(sink_state(sink), run_commit, false);
}

static void memcached_abort(struct sink *sink)
{
    start(sink_state(sink), run_abort, false);
}

static int set_up(struct state *state, const struct sink_target *target, const char *rest)
{
    struct mandor_err *err = &state->err;
    uint64_t nonce = 0;
    int r = items_new(rest, &state->items, err);

    if (r < 0)
        return r;
    if (getrandom(&nonce, sizeof nonce, 0) != sizeof nonce)
        nonce = uv_hrtime();
    const char *key = items_key(state->items);
    state->attempt = target->attempt;
    state->url = strdup(target->url);
    state->hash = XXH3_createState();
    if (asprintf(&state->prefix, "%s.%" PRId64 ".%08x", key, target->attempt, (unsigned)nonce) < 0)
        state->prefix = NULL;
    if (asprintf(&state->fence, "%s.mandor.%016" PRIx64, key,
                 target->job_id == NULL
                     ? 0
                     : (uint64_t)XXH3_64bits(target->job_id, strlen(target->job_id))) < 0)
        state->fence = NULL;
    if (state->url == NULL || state->hash == NULL || state->prefix == NULL || state->fence == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "open '%s'", target->url);
    (void)XXH3_64bits_reset(state->hash);
    return 0;
}

static void memcached_open(struct sink *sink, const struct sink_target *target, const char *rest)
{
    struct state *state = sink_state(sink);

    state->sink = sink;
    int r = set_up(state, target, rest);
    if (r < 0)
        sink_answer(sink, r, &state->err);
    else
        start(state, run_open, false);
}

static void memcached_done(struct sink *sink)
{
    struct state *state = sink_state(sink);

    items_free(state->items);
    buf_done(&state->part);
    free(state->replaced.prefix);
    (void)XXH3_freeState(state->hash);
    free(state->url);
    free(state->prefix);
    free(state->fence);
}

static const char *memcached_target_text(const struct sink *sink)
{
    const struct state *state = sink_state(sink);

    return state->url;
}

extern const struct sink_ops sink_memcached;
const struct sink_ops sink_memcached = {
    .scheme = "memcached",
    .state_size = sizeof(struct state),
    .publishes = true,
    .remote = true,
    .check = sink_url_check_memcached,
    .open = memcached_open,
    .write = memcached_write,
    .prepare = memcached_prepare,
    .commit = memcached_commit,
    .abort = memcached_abort,
    .done = memcached_done,
    .target_text = memcached_target_text,
};
