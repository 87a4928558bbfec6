/* sink_file.c - file:/PATH: a regular file, whole or not at all. */
#include "sink/spool.h"

static int check(const char *rest, struct mandor_err *err)
{
    size_t len = strlen(rest);

    if (rest[0] != '/')
        return err_set(err, -EINVAL, FAULT_CALLER,
                       "sink 'file:%s': expected an absolute path, as file:/PATH", rest);
    if (rest[len - 1] == '/')
        return err_set(err, -EINVAL, FAULT_CALLER,
                       "sink 'file:%s': expected the path of a file, this is a directory", rest);
    return 0;
}

static void file_open(struct sink *sink, const struct sink_target *target, const char *rest)
{
    struct spool *spool = sink_state(sink);
    struct mandor_err err;
    SCOPED_FREE char *dir = strndup(rest, (size_t)(strrchr(rest, '/') - rest) + 1);

    if (dir == NULL || spool_init(spool, sink, target, rest, dir) < 0)
        sink_answer(sink, err_set(&err, -ENOMEM, FAULT_HOST, "open output file '%s'", rest), &err);
    else
        spool_run(spool, SPOOL_OPEN);
}

static void file_write(struct sink *sink, const struct iovec *iov, int count, XXH3_state_t *hash)
{
    struct spool *spool = sink_state(sink);

    spool->iov = iov;
    spool->count = count;
    spool->hash = hash;
    spool_run(spool, SPOOL_WRITE);
}

static void file_prepare(struct sink *sink)
{
    spool_run(sink_state(sink), SPOOL_PREPARE);
}

static void file_commit(struct sink *sink)
{
    spool_run(sink_state(sink), SPOOL_COMMIT);
}

static void file_abort(struct sink *sink)
{
    spool_run(sink_state(sink), SPOOL_ABORT);
}

static void file_done(struct sink *sink)
{
    spool_done(sink_state(sink));
}

static int file_write_fd(const struct sink *sink)
{
    const struct spool *spool = sink_state(sink);

    return spool->file.fd;
}

static int file_splice_fd(const struct sink *sink)
{
    const struct spool *spool = sink_state(sink);

    return spool->file.in_memory ? -1 : spool->file.fd;
}

static uint64_t file_device(const struct sink *sink)
{
    const struct spool *spool = sink_state(sink);

    return spool->file.device;
}

static const char *file_target_text(const struct sink *sink)
{
    const struct spool *spool = sink_state(sink);

    return spool->file.target;
}

const struct sink_ops sink_file = {
    .scheme = "file",
    .state_size = sizeof(struct spool),
    .publishes = true,
    .check = check,
    .open = file_open,
    .write = file_write,
    .commit = file_commit,
    .abort = file_abort,
    .done = file_done,
    .prepare = file_prepare,
    .splice_fd = file_splice_fd,
    .write_fd = file_write_fd,
    .device = file_device,
    .target_text = file_target_text,
};
