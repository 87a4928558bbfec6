/* spill.c - contract in spill.h. */
#include "stream/spill.h"

#include <fcntl.h>
#include <stdio.h>

void spill_init(struct spill *spill, const char *dir, void (*after)(struct spill *spill))
{
    *spill = (struct spill){ .dir = dir, .fd = -1, .after = after };
}

void spill_done(struct spill *spill)
{
    BUG_ON(spill->busy);
    if (spill->fd >= 0)
        (void)close(STEAL_FD(spill->fd));
    buf_done(&spill->out);
}

int64_t spill_waiting(const struct spill *spill)
{
    return spill->to - spill->from + (int64_t)spill->out.len;
}

static int open_file(struct spill *spill)
{
    char path[4096];

    spill->fd = open(spill->dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (spill->fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR))
        return spill->fd < 0 ? -errno : 0;
    (void)snprintf(path, sizeof path, "%s/spill-XXXXXX", spill->dir);
    spill->fd = mkostemp(path, O_CLOEXEC);
    if (spill->fd < 0)
        return -errno;
    (void)unlink(path);
    return 0;
}

static int append(struct spill *spill)
{
    size_t at = 0;

    if (spill->fd < 0) {
        int r = open_file(spill);
        if (r < 0)
            return r;
    }
    while (at < spill->out.len) {
        ssize_t n = RETRY_EINTR(
            pwrite(spill->fd, spill->out.data + at, spill->out.len - at, (off_t)spill->to));
        if (n < 0)
            return -errno;
        at += (size_t)n;
        spill->to += n;
    }
    buf_clear(&spill->out);
    return 0;
}

static int read_back(struct spill *spill)
{
    size_t len = (size_t)MIN(spill->to - spill->from, (int64_t)SPILL_PIECE);

    if (buf_reserve(spill->in, len) < 0)
        return -ENOMEM;
    ssize_t n =
        RETRY_EINTR(pread(spill->fd, spill->in->data + spill->in->len, len, (off_t)spill->from));
    if (n <= 0)
        return n < 0 ? -errno : -EIO;
    spill->in->len += (size_t)n;
    spill->from += n;
    if (spill->from == spill->to) { /* start over: the disk gets its room back */
        spill->from = spill->to = 0;
        if (ftruncate(spill->fd, 0) < 0)
            return -errno;
    }
    return 0;
}

static void run(struct work *work)
{
    struct spill *spill = CONTAINER_OF(work, struct spill, work);

    spill->result = spill->in != NULL ? read_back(spill) : append(spill);
    if (spill->result < 0)
        (void)err_set(&spill->err, spill->result, FAULT_HOST, "spill output to '%s'", spill->dir);
}

static void after(struct work *work)
{
    struct spill *spill = CONTAINER_OF(work, struct spill, work);

    spill->busy = false;
    spill->in = NULL;
    spill->after(spill);
}

static void start(struct spill *spill, uv_loop_t *loop, struct buf *in)
{
    BUG_ON(spill->busy);
    spill->busy = true;
    spill->in = in;
    work_submit(loop, &spill->work, WORK_UNKNOWN, run, after);
}

void spill_append(struct spill *spill, uv_loop_t *loop)
{
    start(spill, loop, NULL);
}

void spill_read(struct spill *spill, uv_loop_t *loop, struct buf *in)
{
    start(spill, loop, in);
}
