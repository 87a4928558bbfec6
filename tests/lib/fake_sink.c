/* fake_sink.c - contract in fake_sink.h. */
#include "fake_sink.h"

struct fake_state {
    struct fake_sink *fake;
};

static struct fake_sink *opening; /* handed to open() by fake_sink_open() */

static int check(const char *rest, struct mandor_err *err)
{
    return 0;
}

static struct fake_sink *fake_of(const struct sink *sink)
{
    return ((struct fake_state *)sink_state(sink))->fake;
}

static void fake_open(struct sink *sink, const struct sink_target *target, const char *rest)
{
    struct fake_state *state = sink_state(sink);

    state->fake = opening;
    if (state->fake->hold_open) {
        state->fake->held = sink;
        state->fake->held_open = true;
    } else {
        sink_answer(sink, 0, NULL);
    }
}

static void take(struct fake_sink *fake, struct sink *sink)
{
    size_t len = 0;
    struct mandor_err err;

    if (fake->fail_write_with != 0 && fake->bytes >= fake->fail_after) {
        sink_answer(sink, err_set(&err, fake->fail_write_with, FAULT_REMOTE, "fake sink"), &err);
        return;
    }
    for (int i = 0; i < fake->count; i++) {
        XXH3_64bits_update(fake->hash, fake->iov[i].iov_base, fake->iov[i].iov_len);
        if (fake->write_hash != NULL)
            XXH3_64bits_update(fake->write_hash, fake->iov[i].iov_base, fake->iov[i].iov_len);
        if (fake->keep)
            BUG_ON(buf_add(&fake->got, fake->iov[i].iov_base, fake->iov[i].iov_len) < 0);
        len += fake->iov[i].iov_len;
    }
    fake->bytes += (int64_t)len;
    fake->largest_write = MAX(fake->largest_write, len);
    sink_answer(sink, 0, NULL);
}

static void fake_write(struct sink *sink, const struct iovec *iov, int count, XXH3_state_t *hash)
{
    struct fake_sink *fake = fake_of(sink);

    fake->iov = iov;
    fake->count = count;
    fake->write_hash = hash;
    if (fake->hold_writes)
        fake->held = sink;
    else
        take(fake, sink);
}

static void publish(struct fake_sink *fake, struct sink *sink)
{
    struct mandor_err err;

    if (!sink_may_publish(sink, &err)) {
        sink_answer(sink, err.code, &err);
    } else if (fake->hold_publish) {
        fake->held = sink;
        fake->held_publish = true;
    } else {
        fake->committed = true;
        sink_answer(sink, 0, NULL);
    }
}

void fake_sink_release(struct fake_sink *fake)
{
    struct sink *sink = STEAL(fake->held);

    BUG_ON(sink == NULL);
    if (fake->held_open) {
        fake->held_open = false;
        sink_answer(sink, 0, NULL);
    } else if (fake->held_commit) {
        fake->held_commit = false;
        publish(fake, sink);
    } else if (fake->held_publish) {
        fake->held_publish = false;
        fake->committed = true;
        sink_answer(sink, 0, NULL);
    } else {
        take(fake, sink);
    }
}

static void fake_prepare(struct sink *sink)
{
    struct fake_sink *fake = fake_of(sink);
    struct mandor_err err;

    fake->prepared = true;
    if (fake->fail_prepare_with != 0)
        (void)err_set(&err, fake->fail_prepare_with, FAULT_REMOTE, "fake sink");
    sink_answer(sink, fake->fail_prepare_with, &err);
}

static void fake_commit(struct sink *sink)
{
    struct fake_sink *fake = fake_of(sink);

    if (!fake->hold_commit) {
        publish(fake, sink);
        return;
    }
    fake->held = sink;
    fake->held_commit = true;
}

static void fake_abort(struct sink *sink)
{
    fake_of(sink)->aborted = true;
    sink_answer(sink, 0, NULL);
}

static void fake_done(struct sink *sink)
{
    fake_of(sink)->freed = true;
}

static const struct sink_ops sink_fake = {
    .scheme = "fake",
    .state_size = sizeof(struct fake_state),
    .publishes = true,
    .check = check,
    .open = fake_open,
    .write = fake_write,
    .commit = fake_commit,
    .abort = fake_abort,
    .prepare = fake_prepare,
    .done = fake_done,
};

void fake_sink_init(struct fake_sink *fake)
{
    *fake = (struct fake_sink){ .hash = XXH3_createState() };
    (void)XXH3_64bits_reset(fake->hash);
}

void fake_sink_done(struct fake_sink *fake)
{
    buf_done(&fake->got);
    (void)XXH3_freeState(fake->hash);
}

struct sink *fake_sink_open(uv_loop_t *loop, struct fake_sink *fake, const char *stream,
                            sink_done_fn *on_opened, void *arg)
{
    struct sink_target target = {
        .url = "fake:", .job_id = "job", .attempt = 1, .stream = stream, .inherit_fd = -1
    };
    struct sink *sink = NULL;

    opening = fake;
    BUG_ON(sink_open_with(loop, &sink_fake, &target, "", on_opened, arg, &sink, NULL) < 0);
    return sink;
}
