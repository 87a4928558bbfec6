/* sink_auto.c - auto: up to SINK_INLINE_MAX bytes stay in memory for the job's record; what is longer spills, all of it, to
 * <data_dir>/output/<id>/<attempt>.<stream>.  A short output costs no system call and no thread. */
#include <stdio.h>

#include "base/buf.h"
#include "sink/spool.h"

struct auto_state {
    struct spool spool; /* first use: the spill */
    struct buf bytes;   /* while inline */
    bool spilled;       /* the file is being made, or is there */
    bool in_file;       /* it is there: until then the pool owns the spool */
};

static int check(const char *rest, struct mandor_err *err)
{
    if (rest[0] != '\0')
        return err_set(err, -EINVAL, FAULT_CALLER,
                       "sink 'auto:%s': expected auto: and nothing behind it", rest);
    return 0;
}

/* Work out where a spill would go.  0 or -ENOMEM. */
static int plan_spill(struct auto_state *state, struct sink *sink, const struct sink_target *target)
{
    SCOPED_FREE char *id = tempfile_encode(target->job_id == NULL ? "run" : target->job_id);
    char *path = NULL;

    if (id == NULL || asprintf(&path, "%s/output/%s/%" PRId64 ".%s", target->data_dir, id,
                               target->attempt, target->stream) < 0)
        return -ENOMEM;
    int r = spool_init(&state->spool, sink, target, path, target->data_dir);
    free(path);
    state->spool.file.own_dir = true;
    return r;
}

static void auto_open(struct sink *sink, const struct sink_target *target, const char *rest)
{
    struct auto_state *state = sink_state(sink);
    struct mandor_err err;

    if (plan_spill(state, sink, target) < 0)
        sink_answer(sink, err_set(&err, -ENOMEM, FAULT_HOST, "open sink 'auto:'"), &err);
    else
        sink_answer(sink, 0, NULL);
}

static void after_spill(struct spool *spool)
{
    struct auto_state *state = CONTAINER_OF(spool, struct auto_state, spool);

    spool->after = NULL;
    state->in_file = spool->result == 0;
    buf_done(&state->bytes);
    sink_answer(spool->sink, spool->result, &spool->err);
}

static void write_file(struct auto_state *state, const struct iovec *iov, int count,
                       XXH3_state_t *hash)
{
    struct spool *spool = &state->spool;
    unsigned steps = SPOOL_WRITE;

    spool->iov = iov;
    spool->count = count;
    spool->hash = hash;
    if (!state->spilled) {
        state->spilled = true;
        spool->head = (struct iovec){ .iov_base = state->bytes.data, .iov_len = state->bytes.len };
        spool->after = after_spill;
        steps |= SPOOL_OPEN;
    }
    spool_run(spool, steps);
}

static int keep(struct auto_state *state, const struct iovec *iov, int count, XXH3_state_t *hash,
                struct mandor_err *err)
{
    for (int i = 0; i < count; i++) {
        if (buf_add(&state->bytes, iov[i].iov_base, iov[i].iov_len) < 0)
            return err_set(err, -ENOMEM, FAULT_HOST, "keep output in memory");
        if (hash != NULL)
            XXH3_64bits_update(hash, iov[i].iov_base, iov[i].iov_len);
    }
    return 0;
}

static void auto_write(struct sink *sink, const struct iovec *iov, int count, XXH3_state_t *hash)
{
    struct auto_state *state = sink_state(sink);
    struct mandor_err err;
    size_t len = state->bytes.len;

    for (int i = 0; i < count; i++)
        len += iov[i].iov_len;
    if (state->spilled || len > SINK_INLINE_MAX)
        write_file(state, iov, count, hash);
    else
        sink_answer(sink, keep(state, iov, count, hash, &err), &err);
}

static void auto_prepare(struct sink *sink)
{
    struct auto_state *state = sink_state(sink);

    if (state->spilled)
        spool_run(&state->spool, SPOOL_PREPARE);
    else
        sink_answer(sink, 0, NULL);
}

static void auto_commit(struct sink *sink)
{
    struct auto_state *state = sink_state(sink);

    if (state->spilled)
        spool_run(&state->spool, SPOOL_COMMIT);
    else
        sink_answer(sink, 0, NULL);
}

static void auto_abort(struct sink *sink)
{
    struct auto_state *state = sink_state(sink);

    if (!state->spilled) {
        buf_done(&state->bytes);
        sink_answer(sink, 0, NULL);
        return;
    }
    spool_run(&state->spool, SPOOL_ABORT);
}

static void auto_done(struct sink *sink)
{
    struct auto_state *state = sink_state(sink);

    spool_done(&state->spool);
    buf_done(&state->bytes);
}

static bool auto_publishes(const struct sink *sink)
{
    const struct auto_state *state = sink_state(sink);

    return state->spilled;
}

static int auto_write_fd(const struct sink *sink)
{
    const struct auto_state *state = sink_state(sink);

    return state->in_file ? state->spool.file.fd : -1;
}

static int auto_splice_fd(const struct sink *sink)
{
    const struct auto_state *state = sink_state(sink);

    return state->in_file && !state->spool.file.in_memory ? state->spool.file.fd : -1;
}

static uint64_t auto_device(const struct sink *sink)
{
    const struct auto_state *state = sink_state(sink);

    return state->spool.file.device;
}

static const char *auto_target_text(const struct sink *sink)
{
    const struct auto_state *state = sink_state(sink);

    return state->spilled ? state->spool.file.target : NULL;
}

static const void *auto_inline(const struct sink *sink, size_t *ret_len)
{
    const struct auto_state *state = sink_state(sink);

    if (state->spilled)
        return NULL;
    *ret_len = state->bytes.len;
    return state->bytes.data == NULL ? "" : state->bytes.data;
}

const struct sink_ops sink_auto = {
    .scheme = "auto",
    .state_size = sizeof(struct auto_state),
    .commits_always = true,
    .check = check,
    .open = auto_open,
    .write = auto_write,
    .commit = auto_commit,
    .abort = auto_abort,
    .done = auto_done,
    .prepare = auto_prepare,
    .publishes_now = auto_publishes,
    .splice_fd = auto_splice_fd,
    .write_fd = auto_write_fd,
    .device = auto_device,
    .target_text = auto_target_text,
    .inline_bytes = auto_inline,
};
