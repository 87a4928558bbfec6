/* sink_null.c - null: the bytes are counted and hashed, and go nowhere. */
#include <fcntl.h>

#include "loop/work.h"
#include "sink/sink_ops.h"

struct null_state {
    struct work work;
    struct sink *sink;
    const struct iovec *iov;
    int count;
    XXH3_state_t *hash;
    int fd; /* /dev/null, for splice(2); -1 where there is none */
};

/* Bytes that are hashed on the loop: what a stream may move in a turn, and hardly slower than it was copied (about 20 us).  A
 * thread costs as much for the way there and back, and the stream waits meanwhile. */
#define HASH_INLINE_MAX ((size_t)256 << 10)

static int check(const char *rest, struct mandor_err *err)
{
    if (rest[0] != '\0')
        return err_set(err, -EINVAL, FAULT_CALLER,
                       "sink 'null:%s': expected null: and nothing behind it", rest);
    return 0;
}

static void null_open(struct sink *sink, const struct sink_target *target, const char *rest)
{
    struct null_state *null = sink_state(sink);

    null->sink = sink;
    null->fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
    sink_answer(sink, 0, NULL);
}

static void hash_all(struct null_state *null)
{
    for (int i = 0; null->hash != NULL && i < null->count; i++)
        XXH3_64bits_update(null->hash, null->iov[i].iov_base, null->iov[i].iov_len);
}

static void run(struct work *work)
{
    hash_all(CONTAINER_OF(work, struct null_state, work));
}

static void after(struct work *work)
{
    sink_answer(CONTAINER_OF(work, struct null_state, work)->sink, 0, NULL);
}

static void null_write(struct sink *sink, const struct iovec *iov, int count, XXH3_state_t *hash)
{
    struct null_state *null = sink_state(sink);
    size_t len = 0;

    for (int i = 0; i < count; i++)
        len += iov[i].iov_len;
    null->iov = iov;
    null->count = count;
    null->hash = hash;
    if (hash != NULL && len > HASH_INLINE_MAX) {
        work_submit(sink_loop(sink), &null->work, WORK_CPU, run, after);
        return;
    }
    hash_all(null);
    sink_answer(sink, 0, NULL);
}

static void null_end(struct sink *sink)
{
    sink_answer(sink, 0, NULL);
}

static void null_done(struct sink *sink)
{
    struct null_state *null = sink_state(sink);

    if (null->fd >= 0)
        (void)close(null->fd);
}

static int null_splice_fd(const struct sink *sink)
{
    const struct null_state *null = sink_state(sink);

    return null->fd;
}

static int null_write_fd(const struct sink *sink)
{
    return SINK_FD_NOWHERE;
}

const struct sink_ops sink_null = {
    .scheme = "null",
    .state_size = sizeof(struct null_state),
    .check = check,
    .open = null_open,
    .write = null_write,
    .commit = null_end,
    .abort = null_end,
    .done = null_done,
    .splice_fd = null_splice_fd,
    .write_fd = null_write_fd,
};
