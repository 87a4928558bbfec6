/* sink_inherit.c - inherit: write to a descriptor that mandor itself was started with (`mandor run`).
 *
 * Its open file description is shared with whoever started us, so O_NONBLOCK is never set on it: the writes block, on a pool
 * thread.  They wait in poll(2), in short turns, and write no more than poll promised, so that a reader that never reads
 * cannot hold the thread when the sink is ended. */
#include <poll.h>
#include <sys/stat.h>

#include "loop/work.h"
#include "sink/sink_ops.h"

#define POLL_MS   50 /* how soon an end of the sink is noticed */
/* PIPE_BUF: a pipe that polls writable takes that much without blocking, pipe(7). */
#define PIECE_MAX 4096

struct inherit_state {
    struct work work;
    struct sink *sink;
    int fd;
    bool regular; /* a file never blocks for a reader */
    const struct iovec *iov;
    int count;
    XXH3_state_t *hash;
    int result;
};

static int check(const char *rest, struct mandor_err *err)
{
    if (rest[0] != '\0')
        return err_set(err, -EINVAL, FAULT_CALLER,
                       "sink 'inherit:%s': expected inherit: and nothing behind it", rest);
    return 0;
}

static void inherit_open(struct sink *sink, const struct sink_target *target, const char *rest)
{
    struct inherit_state *state = sink_state(sink);
    struct mandor_err err;
    struct stat st;

    state->sink = sink;
    state->fd = target->inherit_fd;
    if (state->fd < 0)
        sink_answer(
            sink, err_set(&err, -EINVAL, FAULT_CALLER, "sink 'inherit:' is for `mandor run` only"),
            &err);
    else if (fstat(state->fd, &st) < 0)
        sink_answer(sink, err_set(&err, -errno, FAULT_HOST, "inherited %s", target->stream), &err);
    else {
        state->regular = S_ISREG(st.st_mode);
        sink_answer(sink, 0, NULL);
    }
}

/* Wait until fd takes bytes.  0 or -ECANCELED: the sink was given up meanwhile. */
static int wait_writable(const struct inherit_state *state)
{
    struct pollfd poller = { .fd = state->fd, .events = POLLOUT };

    while (!sink_abandoned(state->sink)) {
        int n = poll(&poller, 1, POLL_MS);
        if (n > 0)
            return 0; /* errors too: write(2) names them */
    }
    return -ECANCELED;
}

static int write_piece(const struct inherit_state *state, const char *bytes, size_t len,
                       size_t *ret_done)
{
    if (!state->regular) {
        int r = wait_writable(state);
        if (r < 0)
            return r;
        len = MIN(len, (size_t)PIECE_MAX);
    }
    ssize_t n = write(state->fd, bytes, len);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) /* EAGAIN: someone else made it O_NONBLOCK */
        n = 0;
    if (n < 0)
        return -errno;
    *ret_done = (size_t)n;
    return 0;
}

static void run(struct work *work)
{
    struct inherit_state *state = CONTAINER_OF(work, struct inherit_state, work);

    state->result = 0;
    for (int i = 0; i < state->count && state->result == 0; i++) {
        const char *bytes = state->iov[i].iov_base;
        size_t left = state->iov[i].iov_len, done = 0;
        if (state->hash != NULL)
            XXH3_64bits_update(state->hash, bytes, left);
        for (; left > 0 && state->result == 0; bytes += done, left -= done) {
            done = 0;
            state->result = write_piece(state, bytes, left, &done);
        }
    }
}

static void after(struct work *work)
{
    struct inherit_state *state = CONTAINER_OF(work, struct inherit_state, work);
    struct mandor_err err;

    if (state->result == -EPIPE)
        (void)err_set(&err, -EPIPE, FAULT_HOST, "the reader of mandor's own output has gone");
    else if (state->result < 0)
        (void)err_set(&err, state->result, FAULT_HOST, "write to mandor's own output");
    sink_answer(state->sink, state->result, &err);
}

static void inherit_write(struct sink *sink, const struct iovec *iov, int count, XXH3_state_t *hash)
{
    struct inherit_state *state = sink_state(sink);

    state->iov = iov;
    state->count = count;
    state->hash = hash;
    work_submit(sink_loop(sink), &state->work, WORK_UNLIMITED, run, after);
}

static void inherit_end(struct sink *sink)
{
    sink_answer(sink, 0, NULL);
}

static void inherit_done(struct sink *sink)
{
}

const struct sink_ops sink_inherit = {
    .scheme = "inherit",
    .state_size = sizeof(struct inherit_state),
    .commits_always = true,
    .check = check,
    .open = inherit_open,
    .write = inherit_write,
    .commit = inherit_end,
    .abort = inherit_end,
    .done = inherit_done,
};
